"""What counters must show for each leg."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kveik.engine.client import Completion
from kveik.engine.metrics import TokenEvidence
from kveik.verify.legs import Batch, Leg, LegRun, Mode, evidence_complaints, foreign_tokens, most_hit_tokens
from kveik.verify.prompts import Prompt

PROMPT = Prompt("en-300", "en", tuple(range(300)))


def batch(evidence: TokenEvidence, cached_tokens: int = -1) -> Batch:
    completion = Completion((1,), "", (-0.1,), ({1: -0.1},), 0.1, 0.2, 300, cached_tokens, "length")
    return Batch((PROMPT,), (completion,), evidence)


COLD = TokenEvidence(prompt=300, computed=300)
LOCAL = TokenEvidence(prompt=300, computed=44, local=256)
SHARED = TokenEvidence(prompt=300, computed=44, external=256, used=256, loaded_blocks=2, compared_blocks=2)


@pytest.mark.parametrize(
    ("leg", "evidence", "expected"),
    [(Leg.COLD, COLD, 0), (Leg.LOCAL, LOCAL, 256), (Leg.RESET, SHARED, 256), (Leg.OTHER, SHARED, 256)],
)
def test_tokens_from_where_the_leg_claims_hold(leg: Leg, evidence: TokenEvidence, expected: int) -> None:
    assert evidence_complaints(leg, batch(evidence), [expected]) == []


@pytest.mark.parametrize(
    ("leg", "evidence", "expected"),
    [
        (Leg.COLD, LOCAL, 0),
        (Leg.COLD, SHARED, 0),
        (Leg.LOCAL, COLD, 256),
        (Leg.LOCAL, SHARED, 256),
        (Leg.RESET, COLD, 256),
        (Leg.RESET, LOCAL, 256),
        (Leg.OTHER, TokenEvidence(prompt=300, computed=172, external=128, used=128), 256),
        (Leg.RESTART, TokenEvidence(prompt=300, computed=44, external=256, used=128), 256),
    ],
)
def test_tokens_from_elsewhere_do_not(leg: Leg, evidence: TokenEvidence, expected: int) -> None:
    assert evidence_complaints(leg, batch(evidence), [expected])


def test_the_answers_own_count_must_agree_where_it_is_reported() -> None:
    assert evidence_complaints(Leg.RESET, batch(SHARED, cached_tokens=256), [256]) == []
    [complaint] = evidence_complaints(Leg.RESET, batch(SHARED, cached_tokens=128), [256])
    assert "reports 128 cached tokens, expected 256" in complaint


def test_blocks_that_differ_in_the_engines_memory_or_failed_are_named() -> None:
    bad = TokenEvidence(300, 44, 0, 256, 256, compared_blocks=2, mismatched_blocks=1, failed_blocks=3)
    complaints = evidence_complaints(Leg.OTHER, batch(bad), [256])
    assert any("1 loaded blocks differ" in text for text in complaints)
    assert any("3 blocks failed" in text for text in complaints)


@given(st.integers(1, 10_000), st.sampled_from([16, 128, 256]))
def test_the_last_token_is_always_computed_and_hits_are_whole_units(tokens: int, unit: int) -> None:
    hit = most_hit_tokens(tokens, unit)
    assert hit < tokens
    assert hit % unit == 0
    assert tokens - hit <= unit


def test_tokens_of_somebody_else_are_seen() -> None:
    assert foreign_tokens(batch(COLD)) == 0
    assert foreign_tokens(batch(TokenEvidence(prompt=310))) == 10


def test_a_leg_sums_its_batches_and_finds_answers_by_name() -> None:
    run = LegRun(Leg.RESET, Mode.SINGLE, (batch(SHARED), batch(SHARED)))
    assert run.evidence.external == 512
    assert set(run.answers) == {"en-300"}


def test_only_legs_over_the_shared_cache_are_external() -> None:
    assert [leg for leg in Leg if leg.external] == [Leg.RESET, Leg.OTHER, Leg.RESTART]

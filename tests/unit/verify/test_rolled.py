"""The proof for an engine of a new version: both ways with an engine of the fleet, or alone."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest

from kveik.errors import VerifyError
from kveik.simulate.behaviour import Behaviour
from kveik.simulate.engine import SimulatedEngine
from kveik.verify.proof import Subject
from kveik.verify.rolled import RolledProof, concluded, prove_rolled, subject

AT_ONCE = (0.0, 0.0)


@contextmanager
def pair(
    new: Behaviour | None = None, other: Behaviour | None = None, *, apart: bool = False
) -> Iterator[list[Subject]]:
    """A new engine and one of the fleet, which share a cache unless they are ``apart``."""
    shared: set[bytes] = set()
    with ExitStack() as stack:
        engines = [
            stack.enter_context(
                SimulatedEngine(shared=set() if apart and n else shared, behaviour=behaviour or Behaviour())
            )
            for n, behaviour in enumerate((new, other))
        ]
        yield [subject(name, engine.url) for name, engine in zip(("new", "old"), engines, strict=True)]


def proved(engines: list[Subject], said: list[str] | None = None) -> RolledProof:
    new, other = engines
    return prove_rolled(new, other, _never, (said if said is not None else []).append, tries_s=AT_ONCE)


def _never() -> None:
    raise AssertionError("no restart is needed")


def test_engines_that_share_blocks_and_answer_alike_hold_both_ways() -> None:
    said: list[str] = []
    with pair() as engines:
        proof = proved(engines, said)
    assert proof == RolledProof(True, "4 prompts hold both ways with old: hits give what cold runs give")
    assert len(said) == 4


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    ("wrong", "side"),
    [("new", "the new engine, with blocks of the fleet"), ("old", "the fleet's engine, with blocks of the new one")],
)
def test_an_engine_that_answers_otherwise_from_the_others_blocks_is_found(wrong: str, side: str, dtype: str) -> None:
    behaviours = [Behaviour(dtype=dtype, wrong_after_shared_hit=wrong == name) for name in ("new", "old")]
    with pair(*behaviours) as engines:
        proof = proved(engines)
    assert not proof.holds
    assert proof.told.startswith("hits do NOT give what cold runs give")
    assert side in proof.told


def test_numbers_that_are_rounded_after_any_hit_hold_in_bfloat16() -> None:
    rounding = Behaviour(dtype="bfloat16", rounding_after_hit=0.05)
    with pair(rounding, rounding) as engines:
        assert proved(engines).holds


def test_blocks_that_do_not_arrive_are_no_proof() -> None:
    with pair(Behaviour(ignores_shared_cache=True)) as engines:
        proof = proved(engines)
    assert not proof.holds
    assert "no hit, although the blocks are in its namespace" in proof.told


def test_the_fleets_engine_may_serve_others_meanwhile() -> None:
    with pair(other=Behaviour(busy=3, foreign_tokens=500)) as engines:
        assert proved(engines).holds


def test_an_engine_that_does_not_report_hits_cannot_be_proved() -> None:
    with pair(Behaviour(reports_cached_tokens=False)) as engines, pytest.raises(VerifyError, match="--enable-prompt-"):
        proved(engines)


def test_an_engine_without_a_shared_cache_has_nothing_to_prove() -> None:
    with pair(Behaviour(has_connector=False)) as engines:
        assert proved(engines).told == "it has no shared cache, so there are no hits to prove"


@pytest.mark.parametrize("with_other", [True, False])
def test_without_another_engine_that_shares_it_is_proved_alone(with_other: bool) -> None:
    with pair(other=Behaviour(has_connector=False)) as (new, other):
        proof = prove_rolled(new, other if with_other else None, _never, lambda _: None, tries_s=AT_ONCE)
        assert proof.told == "4 prompts hold alone, from the shared cache: hits give what cold runs give"


def test_alone_and_without_a_request_that_empties_its_cache_it_is_restarted_once_more() -> None:
    restarts: list[str] = []
    with SimulatedEngine(behaviour=Behaviour(development_mode=False)) as engine:

        def restart() -> None:
            restarts.append("restarted")
            engine.restart()

        proof = prove_rolled(subject("new", engine.url), None, restart, lambda _: None)
    assert proof.holds
    assert restarts == ["restarted"]


def test_alone_a_wrong_hit_is_found_too() -> None:
    with SimulatedEngine(behaviour=Behaviour(wrong_after_shared_hit=True)) as engine:
        proof = prove_rolled(subject("new", engine.url), None, _never, lambda _: None)
    assert not proof.holds
    assert "the new engine, from the shared cache" in proof.told


@pytest.mark.parametrize("apart", [True, False])
def test_engines_of_different_namespaces_must_share_nothing_and_then_the_new_one_is_proved_alone(apart: bool) -> None:
    with pair(Behaviour(namespace="aa"), Behaviour(namespace="bb"), apart=apart) as engines:
        proof = proved(engines)
    assert proof.holds is apart
    assert ("hold alone" in proof.told) is apart
    assert ("although their namespaces differ" in proof.told) is not apart


def test_the_probes_of_a_watchdog_disturb_no_proof() -> None:
    with SimulatedEngine(behaviour=Behaviour(foreign_tokens=9, busy=1)) as engine:
        assert prove_rolled(subject("new", engine.url), None, _never, lambda _: None).holds


def test_blocks_that_were_never_saved_are_no_proof_either() -> None:
    with SimulatedEngine(behaviour=Behaviour(drops_saves=True)) as engine, pytest.raises(VerifyError, match="dropped"):
        prove_rolled(subject("new", engine.url), None, _never, lambda _: None)


def test_many_complaints_are_cut_to_a_few() -> None:
    proof = concluded([f"complaint {n}" for n in range(9)], "9 prompts hold")
    assert "complaint 3" in proof.told
    assert "complaint 4" not in proof.told
    assert proof.told.endswith("and 5 more")

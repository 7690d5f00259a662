"""What a probe saw, and what is wrong then: one test for each way to lose a hit."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kveik.diagnose import cache_probe_remedies as remedies
from kveik.diagnose.cache_counters import Amount, Connector, Counts, KveikCounts
from kveik.diagnose.cache_log import LogEvidence, Share
from kveik.diagnose.cache_probe_verdict import Answer, Observed, ProbeVerdict, Result, answer_of, judge
from kveik.engine.client import Completion

ALL_WELL = KveikCounts(
    asked=999, known_blocks=62, found=992, allowed=992, used=992, lookups={"hit": 1}, choices={"all": 1},
    serving=True, attached=True,
)  # fmt: skip
MISSED = KveikCounts(asked=999, known_blocks=0, lookups={"miss": 1}, serving=True, attached=True)
SAVED = KveikCounts(saved_blocks=62, serving=True, attached=True)


def observed(
    kveik: KveikCounts | None = ALL_WELL, filled: KveikCounts | None = SAVED, *, external: int = -1, **given: Any
) -> Observed:
    """A prompt of 1,000 tokens. ``kveik``: what its connector counted for the second time; None: another connector."""
    outside = external if external >= 0 else kveik.used if kveik else 0
    whole: dict[str, Any] = {
        "connector": Connector.KVEIK if kveik else Connector.SILENT,
        "prompt_tokens": 1000,
        "unit_tokens": 16,
        "fill": Counts(prompt=1000, computed=1000, queried=999, kveik=filled),
        "again": Counts(prompt=1000, computed=1000 - outside, external=outside, queried=999, kveik=kveik),
        "cold_s": 2.0,
        "hit_s": 0.1,
        "answer": Answer("float32"),
        "reported_tokens": outside,
        "own_tokens": 992,
    }
    return Observed(**{**whole, **given})


def verdict(*parts: Any, **given: Any) -> ProbeVerdict:
    return judge(observed(*parts, **given))


def test_tokens_that_came_and_saved_time_with_the_cold_answer_work() -> None:
    found = verdict()
    assert found.works
    assert found.told == (
        "992 of 1,000 tokens came from the shared cache; first token after 0.10 s, 2.00 s when all is computed"
    )
    assert (found.remedy, found.notes) == ("", ())


def test_a_part_of_the_hit_works_and_is_noted() -> None:
    found = verdict(replace(ALL_WELL, used=320, failures={"timeout": 9}), replace(SAVED, dropped={"no_room": 3}))
    assert found.works
    assert found.notes == (
        "only a part of the prompt: a hit of 992 tokens was possible",
        "some blocks failed to load and were computed: 9 timeout",
        "some blocks were not stored: 3 no_room",
    )


def test_another_answer_is_wrong_however_fast() -> None:
    found = verdict(answer=Answer("float32", "other token at position 0, |Δlogprob| 2.7"), hit_s=0.001)
    assert found.result is Result.WRONG
    assert "other token at position 0" in found.told
    assert found.remedy == remedies.WRONG


def test_a_hit_that_is_no_faster_is_slow() -> None:
    assert verdict(hit_s=1.9).result is Result.SLOW
    assert verdict(hit_s=30.0).result is Result.SLOW
    assert verdict(hit_s=1.7).works


@pytest.mark.parametrize(
    ("again", "remedy"),
    [
        (replace(MISSED, asked=0, lookups={"detached": 1}, attached=False), remedies.NO_AGENT),
        (replace(MISSED, asked=0, lookups={}, attached=False), remedies.NO_AGENT),
        (replace(MISSED, asked=0, lookups={"pending": 1}), remedies.PENDING),
        (replace(MISSED, asked=0, lookups={}, serving=False), remedies.NOT_SERVING),
    ],
    ids=["detached", "never asked", "namespace unknown", "layout refused"],
)
def test_a_connector_that_cannot_ask_is_not_connected(again: KveikCounts, remedy: str) -> None:
    found = verdict(again, KveikCounts())
    assert (found.result, found.remedy) == (Result.NOT_CONNECTED, remedy)


def test_a_first_engine_without_an_agent_is_told_from_a_second_one() -> None:
    assert verdict(MISSED, KveikCounts(attached=False), across=True).told == (
        "the connector of the first engine has no agent"
    )
    gone = replace(MISSED, attached=False, lookups={"detached": 1})
    assert verdict(gone, across=True).told == "the connector of the second engine has no agent"


@pytest.mark.parametrize("outcome", ["deadline", "failed", "breaker_open"])
def test_an_agent_that_does_not_answer_is_no_miss(outcome: str) -> None:
    found = verdict(replace(MISSED, lookups={outcome: 2}))
    assert found.result is Result.NO_ANSWER
    assert f"2 {outcome}" in found.told


def test_a_prompt_that_was_never_asked_for_is_told() -> None:
    assert verdict(replace(MISSED, asked=0, lookups={})).result is Result.NOT_ASKED


def test_blocks_that_were_dropped_are_not_stored() -> None:
    found = verdict(MISSED, KveikCounts(dropped={"no_room": 62}, attached=True))
    assert (found.result, found.remedy) == (Result.NOT_STORED, remedies.SAVE_DROPPED)
    assert "62 no_room" in found.told


def test_a_connector_that_saves_nothing_is_told_from_one_that_cannot() -> None:
    assert verdict(MISSED, KveikCounts(attached=True)).remedy == remedies.SAVES_NOTHING


def test_stored_and_gone_is_not_found() -> None:
    assert verdict(MISSED).remedy == remedies.EVICTED


def test_two_namespaces_share_nothing() -> None:
    found = verdict(MISSED, across=True, namespaces=("ab" * 16, "cd" * 16))
    assert (found.result, found.remedy) == (Result.NOT_FOUND, remedies.OTHER_NAMESPACE)
    assert "ab" * 8 in found.told


def test_two_nodes_may_have_nothing_in_common() -> None:
    assert verdict(MISSED, across=True, namespaces=("ab", "ab")).remedy == remedies.NOT_SHARED


def test_blocks_that_no_group_can_use_are_not_called_missing() -> None:
    found = verdict(replace(MISSED, known_blocks=62))
    assert (found.result, found.remedy) == (Result.NOT_USABLE, remedies.GROUP_LACKS)


def test_a_hit_that_computing_beats_is_not_allowed() -> None:
    found = verdict(replace(ALL_WELL, allowed=0, used=0, choices={"none": 1}))
    assert (found.result, found.remedy) == (Result.NOT_ALLOWED, remedies.NOT_ALLOWED)


def test_a_load_that_fails_is_told_with_its_reasons() -> None:
    found = verdict(replace(ALL_WELL, used=0, lost=992, failures={"checksum": 62}))
    assert (found.result, found.remedy) == (Result.NOT_LOADED, remedies.LOAD_FAILED)
    assert found.told.endswith("62 checksum")


def test_an_offer_that_vllm_did_not_take_is_not_loaded() -> None:
    assert verdict(replace(ALL_WELL, used=0)).remedy == remedies.NOT_TAKEN


def without_kveik(*, queried: int = 999, stored: Amount | None = None, **given: Any) -> ProbeVerdict:
    """The prompt came again and nothing of it from outside, with a connector that is not Kveik's."""
    fill = Counts(prompt=1000, computed=1000, queried=queried, stored=stored)
    again = Counts(prompt=1000, computed=1000, queried=queried)
    return judge(observed(None, None, fill=fill, again=again, **given))


def test_an_engine_that_asks_nobody_has_no_connector() -> None:
    found = without_kveik(queried=0)
    assert (found.result, found.remedy) == (Result.NOT_CONNECTED, remedies.NO_CONNECTOR)


def test_every_key_there_and_no_token_usable_is_the_field_reports_fault() -> None:
    log = LogEvidence(exists=[Share(96, 96), Share(386, 5)], hit_tokens=0, lines=["final hit=0"])
    found = without_kveik(log=log, log_read=True)
    assert (found.result, found.remedy) == (Result.NOT_USABLE, remedies.GRANULARITY)
    assert "96/96, 5/386" in found.told


def test_a_pool_without_any_of_the_keys_stored_nothing() -> None:
    log = LogEvidence(exists=[Share(96, 0)], hit_tokens=0, lines=["."])
    assert without_kveik(log=log).result is Result.NOT_STORED
    assert without_kveik(log=log, stored=Amount(96, "keys")).result is Result.NOT_FOUND


def test_found_in_the_log_and_used_by_nobody_is_not_loaded() -> None:
    log = LogEvidence(hit_tokens=768, need_tokens=768, lines=["."])
    assert without_kveik(log=log).result is Result.NOT_LOADED


def test_a_least_length_that_lmcache_keeps_to_is_not_allowed() -> None:
    log = LogEvidence(hit_tokens=256, need_tokens=256, too_short_to_load=True, lines=["."])
    assert without_kveik(log=log).told.startswith("256 tokens were found")
    assert without_kveik(log=log).result is Result.NOT_ALLOWED
    unsaid = LogEvidence(need_tokens=0, too_short_to_load=True, lines=["."])
    assert without_kveik(log=unsaid).told.startswith("tokens were found"), "where the log does not say how many"


def test_a_store_that_counts_tells_not_stored_from_not_found() -> None:
    assert without_kveik(stored=Amount(0, "tokens")).result is Result.NOT_STORED
    found = without_kveik(stored=Amount(768, "tokens"))
    assert (found.result, found.remedy) == (Result.NOT_FOUND, remedies.OTHER_HASHES)
    assert "768 tokens were stored" in found.told
    assert without_kveik(log=LogEvidence(stored=Share(900, 768), lines=["."])).told.startswith("768/900 tokens")


def test_what_nobody_counts_is_said_to_be_unknown() -> None:
    found = without_kveik()
    assert (found.result, found.remedy) == (Result.NOT_FOUND, remedies.SAY_MORE)
    assert "cannot be said" in found.told


def test_another_connectors_hit_works_by_vllms_own_counters() -> None:
    assert verdict(None, None, external=768).works


def test_traffic_of_others_is_noted_and_not_taken_for_the_probes_own() -> None:
    busy = observed(
        foreign_tokens=5000, reported_tokens=0, again=Counts(prompt=6000, kveik=replace(ALL_WELL, used=900))
    )
    assert busy.used_tokens == 0
    assert judge(busy).notes[0].startswith("others used the engine meanwhile (5,000 prompt tokens)")
    assert observed(foreign_tokens=5000, reported_tokens=992).used_tokens == 992
    assert observed(foreign_tokens=5000, reported_tokens=-1).used_tokens == 992


def test_notes_say_what_was_not_looked_at() -> None:
    assert "not compared" in verdict(answer=Answer("", compared=False)).notes[0]
    assert "prefix caching" in verdict(own_tokens=0).notes[0]
    assert "at DEBUG" in without_kveik(log_read=True).notes[0]


def answer(*ids: int, logprob: float = -1.0) -> Completion:
    logprobs = tuple(logprob for _ in ids)
    top = tuple({token: logprob} for token in ids)
    return Completion(ids, "", logprobs, top, 0.1, 0.2, 10, 0, "length")


def test_in_float32_the_cold_answer_must_come_back() -> None:
    cold = answer(5, 6)
    assert answer_of(cold, answer(5, 6), answer(5, 6), "float32").complaint == ""
    assert answer_of(cold, answer(5, 6), answer(5, 7), "float32").complaint
    assert answer_of(cold, answer(5, 6), answer(5, 6, logprob=-1.1), "float32").complaint


def test_rounded_answers_are_measured_by_what_the_own_cache_gives() -> None:
    cold, own = answer(5, 6), answer(5, 6, logprob=-1.1)
    assert answer_of(cold, own, answer(5, 6, logprob=-1.3), "bfloat16").complaint == ""
    assert answer_of(cold, own, answer(5, 6, logprob=-2.0), "bfloat16").complaint


def test_without_log_probabilities_nothing_is_compared() -> None:
    plain = Completion((5,), "", (), (), 0.1, 0.2, 10, 0, "length")
    assert not answer_of(plain, plain, plain, "").compared


COUNT = st.integers(0, 2000)
REASONS = st.dictionaries(st.sampled_from(["timeout", "checksum", "no_room", "miss"]), st.integers(1, 99), max_size=2)
OUTCOMES = st.dictionaries(
    st.sampled_from(["hit", "miss", "deadline", "detached", "pending", "failed", "breaker_open"]),
    st.integers(1, 9),
    max_size=3,
)
FLAG = st.sampled_from([None, True, False])
KVEIK_COUNTS = st.builds(
    KveikCounts,
    asked=COUNT,
    known_blocks=st.none() | COUNT,
    found=COUNT,
    allowed=COUNT,
    used=COUNT,
    lost=COUNT,
    saved_blocks=COUNT,
    skipped_blocks=COUNT,
    lookups=OUTCOMES,
    choices=REASONS,
    failures=REASONS,
    dropped=REASONS,
    serving=FLAG,
    attached=FLAG,
)
COUNTS = st.builds(
    Counts,
    prompt=COUNT,
    computed=COUNT,
    local=COUNT,
    external=COUNT,
    queried=COUNT,
    kveik=st.none() | KVEIK_COUNTS,
    stored=st.none() | st.builds(Amount, count=COUNT, unit=st.just("blocks")),
    found=st.none() | st.builds(Amount, count=COUNT, unit=st.just("blocks")),
)
SHARES = st.builds(Share, of=COUNT, count=COUNT)
LOGS = st.builds(
    LogEvidence,
    exists=st.lists(SHARES, max_size=3),
    hit_tokens=st.none() | COUNT,
    need_tokens=st.none() | COUNT,
    too_short_to_load=st.booleans(),
    stored=st.none() | SHARES,
)
SEEN = st.builds(
    Observed,
    connector=st.sampled_from(Connector),
    prompt_tokens=st.integers(1, 2000),
    unit_tokens=st.integers(1, 512),
    fill=COUNTS,
    again=COUNTS,
    cold_s=st.floats(0, 100),
    hit_s=st.floats(0, 100),
    answer=st.sampled_from([Answer("r"), Answer("r", "differs"), Answer("r", compared=False)]),
    reported_tokens=st.integers(-1, 2000),
    own_tokens=COUNT,
    foreign_tokens=COUNT,
    namespaces=st.tuples(st.sampled_from(["", "a", "b"]), st.sampled_from(["", "a", "b"])),
    across=st.booleans(),
    log=LOGS,
    log_read=st.booleans(),
)


@given(SEEN)
def test_whatever_is_seen_has_one_result_and_unless_it_works_a_remedy(seen: Observed) -> None:
    found = judge(seen)
    assert found.told
    assert bool(found.remedy) != found.works
    took = {Result.WORKS, Result.SLOW, Result.WRONG}
    assert (found.result in took) == (seen.used_tokens > 0)


@given(SEEN)
def test_another_answer_never_passes_for_one_that_works(seen: Observed) -> None:
    found = judge(replace(seen, answer=Answer("r", "differs")))
    assert not found.works
    assert (found.result is Result.WRONG) == (seen.used_tokens > 0)


@given(SEEN)
def test_no_more_tokens_are_told_than_the_prompt_has(seen: Observed) -> None:
    assert 0 <= seen.used_tokens <= seen.prompt_tokens
    assert 0 <= seen.possible_tokens < seen.prompt_tokens

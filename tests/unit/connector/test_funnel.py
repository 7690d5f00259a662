"""The records that the scheduler's side fills."""

from types import SimpleNamespace
from typing import Any

import pytest

from kveik.agent.funnel import RequestFunnel
from kveik.agent.protocol import Located, PartlyThere
from kveik.clock import FakeClock
from kveik.connector import funnel, plan
from kveik.connector.funnel import Funnels
from kveik.connector.load_choice import Choice
from kveik.connector.plan import Shape
from kveik.kv.groups import GroupKind, GroupSpec
from kveik.kv.prompt_print import prompt_print

ONE = Shape((GroupSpec(0, GroupKind.FULL, 16),), 16)
TIERS = ["", "arena", "filesystem"]
HASHES = [bytes([index]) * 32 for index in range(8)]
NONE_FAILED: frozenset[tuple[int, bytes]] = frozenset()


def request(name: str = "r", tokens: int = 130) -> Any:
    return SimpleNamespace(request_id=name, num_prompt_tokens=tokens, prompt_token_ids=list(range(tokens)))


def record(kept: int = 8, **given: Any) -> RequestFunnel:
    made = Funnels(kept, ONE, FakeClock(), **given).begin(request())
    assert made is not None
    return made


def looked_up(places: bytes, failed: frozenset[tuple[int, bytes]] = NONE_FAILED, **answered: Any) -> RequestFunnel:
    """A record after the agent answered for eight blocks."""
    made = record()
    funnel.note_limits(made, b"n" * 16, HASHES, 0, 128)
    parts = plan.lookup_parts(ONE, HASHES, 0, 128)
    found = plan.found_of(0, parts, Located(1, [places], **answered))
    hit = plan.usable(ONE, found, 128, failed)
    funnel.note_lookup(made, "hit" if hit.tokens else "miss", 5.0, 0.002)
    funnel.note_found(made, ONE, found, hit, failed, TIERS.__getitem__)
    return made


class TestRing:
    def test_a_record_begins_with_what_the_request_and_the_engine_are(self) -> None:
        made = record(saves=False)
        assert (made.request_id, made.prompt_tokens, made.hash_tokens, made.unit_tokens) == ("r", 130, 16, 16)
        assert (made.began_s, made.saves) == (1000.0, False)

    def test_none_are_made_where_none_are_wanted(self) -> None:
        assert Funnels(0, ONE, FakeClock()).begin(request()) is None

    def test_changed_records_are_told_once_with_their_prompts_digested(self) -> None:
        funnels = Funnels(8, ONE, FakeClock())
        one, two = funnels.begin(request("one")), funnels.begin(request("two"))
        funnels.changed(two)
        funnels.changed(two)
        assert funnels.take() == [two]
        assert two is not None
        assert two.prints == prompt_print(list(range(130)))
        assert funnels.take() == []
        funnels.changed(one)
        funnels.changed(None)
        assert repr(funnels) == "Funnels(2 of 8, 1 to tell)"

    def test_the_oldest_make_room(self) -> None:
        funnels = Funnels(2, ONE, FakeClock())
        for number in range(3):
            funnels.changed(funnels.begin(request(str(number))))
        assert [one.request_id for one in funnels.take()] == ["1", "2"]

    def test_another_agent_is_told_of_all_that_were_looked_up(self) -> None:
        funnels = Funnels(8, ONE, FakeClock())
        one, _ = funnels.begin(request("one")), funnels.begin(request("two"))
        funnel.note_lookup(one, "miss")
        funnels.changed(one)
        funnels.take()
        funnels.tell_all()
        assert funnels.take() == [one]

    def test_prompts_that_wait_for_an_agent_are_bounded(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(funnel, "PROMPT_TOKENS_MAX", 200)
        funnels = Funnels(8, ONE, FakeClock())
        made = [funnels.begin(request(str(number))) for number in range(2)]
        for one in made:
            funnels.changed(one)
        assert [bool(one.prints) for one in funnels.take()] == [True, False]
        funnels.changed(funnels.begin(request("3")))
        assert [bool(one.prints) for one in funnels.take()] == [True]


class TestLookups:
    def test_limits_tell_whole_blocks_and_how_far_a_hit_may_reach(self) -> None:
        made = record()
        funnel.note_limits(made, b"n" * 16, HASHES, 32, 112)
        assert (made.hashed_tokens, made.local_tokens, made.limit_tokens) == (128, 32, 112)
        assert (made.namespace, made.first_hash) == (b"n" * 16, HASHES[0][:8])
        funnel.note_limits(made, b"n" * 16, [], 0, 0)
        assert (made.hashed_tokens, made.first_hash) == (0, b"")

    def test_what_is_found_is_told_by_tier_with_the_first_block_that_is_not(self) -> None:
        made = looked_up(b"\1\1\2\0\1\0\0\0")
        assert (made.lookup, made.asked_s, made.lookup_s) == ("hit", 5.0, 0.002)
        assert (made.asked_blocks, made.found_blocks) == (8, {"arena": 3, "filesystem": 1})
        assert (made.known_tokens, made.usable_tokens, made.allowed_tokens) == (48, 48, 48)
        assert made.missing is not None
        assert (made.missing.first_token, made.missing.end_token, made.missing.block_hash) == (48, 64, HASHES[3])
        assert "lacks block 3" in made.cut

    def test_a_whole_hit_misses_nothing(self) -> None:
        made = looked_up(b"\1" * 8)
        assert (made.known_tokens, made.missing, made.cut) == (128, None, "")

    def test_a_block_that_failed_lately_is_marked(self) -> None:
        made = looked_up(b"\1" * 8, frozenset({(0, HASHES[2])}))
        assert made.missing is not None
        assert made.missing.failed
        assert made.usable_tokens == 32

    def test_a_block_that_some_ranks_lack_is_told_with_them(self) -> None:
        made = looked_up(b"\1\1\0\0\0\0\0\0", partly=[PartlyThere(0, 2, [1])])
        assert made.missing is not None
        assert made.missing.ranks == [1]

    def test_a_second_lookup_replaces_the_first_until_computing_begins(self) -> None:
        made = looked_up(b"\1" * 8)
        funnel.note_limits(made, b"n" * 16, HASHES, 0, 64)
        assert (made.limit_tokens, made.known_tokens, made.lookup) == (64, -1, "")
        made.computed_from = 0
        funnel.note_limits(made, b"n" * 16, HASHES, 0, 128)
        funnel.note_lookup(made, "hit")
        funnel.note_choice(made, Choice(64, "part"))
        funnel.note_taken(made, 0, 64)
        assert (made.limit_tokens, made.lookup, made.choice, made.admissions) == (64, "", "", 0)


class TestLoadsAndSaves:
    def test_a_choice_is_told_with_its_seconds(self) -> None:
        made = looked_up(b"\1" * 8)
        funnel.note_choice(made, Choice(64, "part", 0.1, 0.2, 0.3))
        assert (made.allowed_tokens, made.choice, made.choice_s) == (64, "part", (0.1, 0.2, 0.3))

    def test_a_hit_that_is_too_short_is_not_allowed(self) -> None:
        made = looked_up(b"\1\0\0\0\0\0\0\0")
        funnel.note_too_few(made)
        assert (made.allowed_tokens, made.choice) == (0, "too_few")
        missed = looked_up(bytes(8))
        funnel.note_too_few(missed)
        assert missed.choice == ""

    def test_what_vllm_takes_counts_and_a_later_allocation_without_a_lookup_is_none(self) -> None:
        made = looked_up(b"\1" * 8)
        funnel.note_taken(made, 16, 112)
        funnel.note_taken(made, 0, 0)
        assert (made.load_tokens, made.admissions) == (112, 1)
        assert (made.admitted_local_tokens, made.admitted_load_tokens) == (16, 112)
        missed = looked_up(bytes(8))
        funnel.note_taken(missed, 0, 0)
        assert (missed.load_tokens, missed.admissions) == (0, 1)

    def test_after_a_failed_load_the_first_lookup_is_kept_and_the_second_admission_counted(self) -> None:
        made = looked_up(b"\1" * 8)
        funnel.note_taken(made, 0, 128)
        funnel.note_loaded(made, 0, 0.1, {"checksum": 8})
        funnel.note_limits(made, b"n" * 16, HASHES, 0, 0)
        funnel.note_lookup(made, "short")
        funnel.note_taken(made, 0, 0)
        assert (made.limit_tokens, made.known_tokens, made.lookup, made.load_tokens) == (128, 128, "hit", 128)
        assert (made.admissions, made.admitted_load_tokens, made.used_tokens) == (2, 128, 0)

    def test_failures_of_all_loads_are_summed(self) -> None:
        made = record()
        funnel.note_loaded(made, 64, 0.5, {"timeout": 2})
        funnel.note_loaded(made, 32, 0.25, {"timeout": 1, "checksum": 1})
        assert (made.used_tokens, made.load_s, made.failed_blocks) == (32, 0.75, {"timeout": 3, "checksum": 1})

    def test_saves_are_counted_until_they_end_with_what_they_lost(self) -> None:
        made = record()
        funnel.note_saving(made)
        funnel.note_dropped(made, {"queue_full": 1})
        assert (made.saving, made.dropped_blocks) == (1, {"queue_full": 1})
        funnel.note_saved(made, 8, {"no_room": 3})
        assert (made.saving, made.saved_blocks, made.dropped_blocks) == (0, 5, {"queue_full": 1, "no_room": 3})

    def test_without_a_record_nothing_is_noted(self) -> None:
        found = plan.found_of(0, plan.lookup_parts(ONE, HASHES, 0, 128), Located(1, [bytes(8)]))
        funnel.note_limits(None, b"", HASHES, 0, 0)
        funnel.note_lookup(None, "hit")
        funnel.note_found(None, ONE, found, plan.usable(ONE, found, 128, NONE_FAILED), NONE_FAILED, str)
        funnel.note_choice(None, Choice(0, "none"))
        funnel.note_too_few(None)
        funnel.note_taken(None, 0, 1)
        funnel.note_loaded(None, 1, 0.0, {})
        funnel.note_saving(None)
        funnel.note_dropped(None, {})
        funnel.note_saved(None, 1, {})

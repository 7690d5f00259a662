"""The scheduler's side, driven step by step against an agent that the test plays."""

from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("vllm", reason="the connector's scheduler side needs vLLM")

from kveik.agent.protocol import EngineRates, Granted, Located, TierRate
from kveik.clock import FakeClock
from kveik.config import ConnectorSettings
from kveik.connector.jobs import KveikWorkerMetadata
from kveik.connector.load_advice import EngineFacts
from kveik.connector.metrics import StatsBox
from kveik.connector.plan import Shape
from kveik.connector.scheduler import FAILED_KEY_LIFETIME_S, SchedulerSide
from kveik.errors import AgentUnavailableError
from kveik.kv.groups import GroupKind, GroupSpec

BLOCK = 16
ONE = Shape((GroupSpec(0, GroupKind.FULL, BLOCK),), BLOCK)
TWO = Shape((GroupSpec(0, GroupKind.FULL, BLOCK), GroupSpec(1, GroupKind.SLIDING_WINDOW, BLOCK, 33)), BLOCK)


class Pool:
    """The part of vLLM's BlockPool that the connector uses, counting references."""

    def __init__(self, count: int = 400) -> None:
        self.num_gpu_blocks = count
        self.blocks = [SimpleNamespace(block_id=index, ref_cnt=0) for index in range(count)]

    def touch(self, blocks: Any) -> None:
        for block in blocks:
            block.ref_cnt += 1

    def free_blocks(self, blocks: Any) -> None:
        for block in blocks:
            block.ref_cnt -= 1
            assert block.ref_cnt >= 0

    @property
    def held(self) -> list[int]:
        return [block.block_id for block in self.blocks if block.ref_cnt]


class Agent:
    """Keeps lookups open until the test answers them."""

    def __init__(self) -> None:
        self.welcome = SimpleNamespace(places=["", "arena", "filesystem"])
        self.lookups: list[tuple[list[tuple[int, list[bytes]]], Future[Located]]] = []
        self.automatic: bytes | None = None
        self.rates: list[TierRate] = []
        self.told: list[EngineRates] = []
        self.reads: list[list[bytes]] = []

    def submit_lookup(
        self, namespace: bytes, ranks: Any, parts: Any, deadline_s: float, engine: Any = None
    ) -> "Future[Located]":
        future: Future[Located] = Future()
        self.lookups.append((parts, future))
        if self.automatic is not None:
            future.set_result(Located(1, [self.automatic[: len(hashes)] for _, hashes in parts], self.rates))
        if engine is not None:
            self.told.append(engine)
        return future

    def submit_read(self, keys: Any, payload_bytes: Any, deadline_s: float) -> "Future[Granted]":
        self.reads.append(list(keys))
        return Future()


def request(name: str = "r", tokens: int = 100, computed: int = 0) -> Any:
    return SimpleNamespace(
        request_id=name,
        num_tokens=tokens,
        num_prompt_tokens=tokens,
        num_computed_tokens=computed,
        block_hashes=[name.encode().ljust(31) + bytes([index]) for index in range(tokens // BLOCK)],
        skip_reading_prefix_cache=False,
        lora_request=None,
    )


def step(
    tables: dict[str, tuple[list[int], ...]] | None = None, finished: set[str] | None = None, **scheduled: int
) -> Any:
    known = tables or {}
    return SimpleNamespace(
        total_num_scheduled_tokens=sum(scheduled.values()),
        num_scheduled_tokens=scheduled,
        finished_req_ids=finished or set(),
        kv_connector_block_state=SimpleNamespace(get_block_ids=known.get, boundary_state_offloads={}),
    )


class Bench:
    """A scheduler side with its surroundings."""

    def __init__(self, shape: Shape = ONE, **settings: Any) -> None:
        self.clock = FakeClock()
        self.stats = StatsBox()
        self.agent = Agent()
        self.link = SimpleNamespace(client=self.agent)
        self.pool = Pool()
        self.side = SchedulerSide(shape, [0], ConnectorSettings(**settings), self.stats, clock=self.clock)
        self.side.bind_pool(self.pool)  # type: ignore[arg-type]
        self.side.open(self.link, SimpleNamespace(of=lambda adapter: adapter or b"n" * 16))  # type: ignore[arg-type]

    def count(self, key: str) -> float:
        taken = self.stats.take()
        return float(taken.data["add"].get(key, 0)) if taken else 0.0

    def allocate(self, asked: Any, tokens: int, *tables: list[int]) -> None:
        self.side.allocated(asked, SimpleNamespace(get_block_ids=lambda: tables), tokens)  # type: ignore[arg-type]


class TestOffers:
    def test_a_hit_is_offered_for_asynchronous_loading(self) -> None:
        bench = Bench()
        bench.agent.automatic = b"\1" * 9
        assert bench.side.offer(request(), 0) == (96, True)

    @pytest.mark.parametrize(("whole", "tokens"), [(False, 80), (True, 96)])
    def test_a_prompt_that_ends_with_a_block_is_offered_whole_when_set(self, whole: bool, tokens: int) -> None:
        bench = Bench(whole_prompt_hits=whole)
        bench.agent.automatic = b"\1" * 9
        assert bench.side.offer(request(tokens=96), 0) == (tokens, True)

    def test_blocks_that_are_there_and_of_no_use_are_counted(self) -> None:
        bench = Bench()
        bench.agent.automatic = b"\0" + b"\1" * 5
        assert bench.side.offer(request(), 0) == (0, False)
        taken = bench.stats.take()
        assert taken is not None
        counted = taken.data["add"]
        assert (counted["known_blocks"], counted["lookups|outcome=miss"]) == (5, 1)
        assert "tokens_found" not in counted

    def test_the_scheduler_is_asked_to_come_back_while_the_agent_has_not_answered(self) -> None:
        bench, asked = Bench(), request()
        assert bench.side.offer(asked, 0) == (None, False)
        bench.agent.lookups[0][1].set_result(Located(1, [b"\1\1\0\0\0\0"]))
        assert bench.side.offer(asked, 0) == (32, True)
        assert len(bench.agent.lookups) == 1

    def test_after_the_deadline_the_request_computes(self) -> None:
        bench, asked = Bench(lookup_deadline_s=0.05), request()
        assert bench.side.offer(asked, 0) == (None, False)
        bench.clock.advance(0.06)
        assert bench.side.offer(asked, 0) == (0, False)
        assert bench.agent.lookups[0][1].cancelled()
        assert bench.side.offer(asked, 0) == (0, False)
        assert len(bench.agent.lookups) == 1

    def test_one_timeout_opens_the_breaker_and_one_trial_closes_it(self) -> None:
        bench = Bench()
        slow = request("slow")
        bench.side.offer(slow, 0)
        bench.clock.advance(0.06)
        bench.side.offer(slow, 0)
        assert bench.side.offer(request("next"), 0) == (0, False)
        assert len(bench.agent.lookups) == 1
        bench.clock.advance(1.1)
        bench.agent.automatic = b"\1" * 9
        assert bench.side.offer(request("trial"), 0) == (96, True)
        assert bench.side.offer(request("after"), 0) == (96, True)

    def test_without_an_agent_nothing_is_offered(self) -> None:
        bench = Bench()
        bench.link.client = None  # type: ignore[assignment]
        assert bench.side.offer(request(), 0) == (0, False)

    def test_a_broken_connection_is_a_miss(self) -> None:
        bench, asked = Bench(), request()
        bench.side.offer(asked, 0)
        bench.agent.lookups[0][1].set_exception(AgentUnavailableError("gone"))
        assert bench.side.offer(asked, 0) == (0, False)

    def test_an_answer_is_kept_for_a_while_and_then_asked_again(self) -> None:
        bench, asked = Bench(), request()
        bench.agent.automatic = b"\0" * 9
        bench.side.offer(asked, 0)
        bench.side.offer(asked, 0)
        assert len(bench.agent.lookups) == 1
        bench.clock.advance(3)
        bench.side.offer(asked, 0)
        assert len(bench.agent.lookups) == 2

    def test_small_gains_are_not_offered(self) -> None:
        bench = Bench(min_hit_tokens=64)
        bench.agent.automatic = b"\1" * 9
        assert bench.side.offer(request(), 48) == (0, False)
        assert bench.side.offer(request("other"), 32) == (64, True)

    def test_prompt_log_probabilities_need_all_tokens_computed(self) -> None:
        asked = request()
        asked.skip_reading_prefix_cache = True
        bench = Bench()
        assert bench.side.offer(asked, 0) == (0, False)
        assert bench.agent.lookups == []


class TestLoads:
    def loading(self, shape: Shape = ONE) -> tuple[Bench, Any]:
        bench, asked = Bench(shape), request()
        bench.agent.automatic = b"\1" * 9
        offered, _ = bench.side.offer(asked, 0)
        assert offered == 96
        bench.allocate(asked, 96, [1, 2, 3, 4, 5, 6], [0, 0, 0, 14, 15, 16])
        return bench, asked

    def test_a_taken_offer_becomes_one_job(self) -> None:
        bench, _ = self.loading()
        (job,) = bench.side.plan_step(step()).loads
        assert [ref.block_id for ref in job.blocks] == [1, 2, 3, 4, 5, 6]
        assert bench.side.plan_step(step()).loads == []

    def test_used_tokens_are_counted_when_the_load_ended(self) -> None:
        bench, _ = self.loading()
        bench.side.step_done(KveikWorkerMetadata(loaded={"r": set()}))
        assert bench.count("tokens_used") == 96

    def test_one_group_uses_the_prefix_before_the_failure(self) -> None:
        bench, asked = self.loading()
        bench.side.step_done(KveikWorkerMetadata(loaded={"r": {(0, asked.block_hashes[2])}}))
        taken = bench.stats.take()
        assert taken is not None
        assert (taken.data["add"]["tokens_used"], taken.data["add"]["tokens_lost"]) == (32, 64)

    def test_a_failed_hit_is_never_offered_to_that_request_again(self) -> None:
        """vLLM asks again after a failed load of several groups; the same answer would loop for ever."""
        bench, asked = self.loading(TWO)
        offers = []
        failing = {(0, asked.block_hashes[4])}
        for _ in range(10):
            bench.side.step_done(KveikWorkerMetadata(loaded={"r": set(failing)}))
            tokens, _asynchronous = bench.side.offer(asked, 0)
            assert tokens is not None
            offers.append(tokens)
            if tokens == 0:
                break
            bench.allocate(asked, tokens, [1, 2, 3, 4, 5, 6], [9, 9, 9, 9, 9, 9])
            failing = {(1, asked.block_hashes[tokens // BLOCK - 1])}
        assert offers == [64, 48, 32, 16, 0]

    def test_other_requests_are_not_offered_blocks_that_failed_lately(self) -> None:
        bench, asked = self.loading()
        bench.side.step_done(KveikWorkerMetadata(loaded={"r": {(0, asked.block_hashes[2])}}))
        twin = request()
        twin.request_id = "twin"
        assert bench.side.offer(twin, 0) == (32, True)
        bench.clock.advance(FAILED_KEY_LIFETIME_S + 1)
        late = request()
        late.request_id = "late"
        assert bench.side.offer(late, 0) == (96, True)

    def test_an_engine_without_the_needed_blocks_gets_a_job_that_only_fails(self) -> None:
        bench, asked = Bench(TWO), request()
        bench.agent.automatic = b"\1" * 9
        bench.side.offer(asked, 0)
        bench.allocate(asked, 96, [1, 2, 3, 4, 5, 6], [0, 0, 0, 0, 0, 16])
        (job,) = bench.side.plan_step(step()).loads
        assert not job.complete

    def test_aborting_a_loading_request_saves_nothing_of_it(self) -> None:
        """Its blocks hold whatever was in them before until the load has ended."""
        bench, asked = self.loading()
        asked.num_computed_tokens = 96
        bench.side.finished(asked, ([1, 2, 3, 4, 5, 6],))
        assert bench.side.plan_step(step()).saves == []


class TestSaves:
    TABLE = ([10, 11, 12, 13, 14, 15, 16],)

    def test_blocks_are_saved_once_when_they_are_whole(self) -> None:
        bench, asked = Bench(), request()
        bench.side.add(asked)
        first = bench.side.plan_step(step({"r": self.TABLE}, r=40)).saves
        asked.num_computed_tokens = 40
        second = bench.side.plan_step(step({"r": self.TABLE}, r=60)).saves
        saved = [ref.block_id for job in first + second for ref in job.blocks]
        assert saved == [10, 11, 12, 13, 14, 15]

    def test_blocks_are_held_until_every_rank_saved_them(self) -> None:
        bench = Bench()
        bench.side._ranks = [0, 1]
        bench.side.add(request())
        (job,) = bench.side.plan_step(step({"r": self.TABLE}, r=32)).saves
        assert bench.pool.held == [10, 11]
        assert bench.side.has_saves_under_way
        bench.side.step_done(KveikWorkerMetadata(saved={job.job_id: 1}))
        assert bench.pool.held == [10, 11]
        bench.side.step_done(KveikWorkerMetadata(saved={job.job_id: 1}))
        assert bench.pool.held == []
        assert not bench.side.has_saves_under_way

    def test_the_engines_own_hits_are_not_saved_again(self) -> None:
        bench, asked = Bench(), request(computed=64)
        bench.side.add(asked)
        (job,) = bench.side.plan_step(step({"r": self.TABLE}, r=36)).saves
        assert [ref.block_id for ref in job.blocks] == [14, 15]

    def test_blocks_whose_last_tokens_are_not_known_yet_wait(self) -> None:
        """With asynchronous scheduling a step may compute tokens that the scheduler has not seen."""
        bench, asked = Bench(), request(tokens=40)
        bench.side.add(asked)
        first = bench.side.plan_step(step({"r": self.TABLE}, r=48)).saves
        assert [ref.block_id for ref in first[0].blocks] == [10, 11]
        asked.block_hashes = request(tokens=48).block_hashes
        asked.num_computed_tokens = 48
        second = bench.side.plan_step(step({"r": self.TABLE}, r=1)).saves
        assert [ref.block_id for ref in second[0].blocks] == [12]

    def test_what_is_left_is_saved_when_the_request_ends(self) -> None:
        bench, asked = Bench(), request(tokens=31)
        bench.side.add(asked)
        bench.side.plan_step(step({"r": self.TABLE}, r=32))
        asked.block_hashes = request(tokens=32).block_hashes
        bench.side.finished(asked, self.TABLE)
        (job,) = bench.side.plan_step(step(finished={"r"})).saves
        assert [ref.block_id for ref in job.blocks] == [11]

    def test_only_prompts_are_saved_when_told_so(self) -> None:
        bench, asked = Bench(save_decoded=False), request(tokens=64)
        asked.num_prompt_tokens = 33
        bench.side.add(asked)
        (job,) = bench.side.plan_step(step({"r": self.TABLE}, r=64)).saves
        assert [ref.block_id for ref in job.blocks] == [10, 11]

    def test_a_slow_agent_cannot_make_the_engine_hold_all_its_blocks(self) -> None:
        bench, asked = Bench(save_queue_blocks=4), request()
        bench.side.add(asked)
        (job,) = bench.side.plan_step(step({"r": self.TABLE}, r=100)).saves
        assert [ref.block_id for ref in job.blocks] == [10, 11, 12, 13]
        asked.num_computed_tokens = 100
        assert bench.side.plan_step(step({"r": self.TABLE}, r=1)).saves == []
        bench.side.step_done(KveikWorkerMetadata(saved={job.job_id: 1}))
        (rest,) = bench.side.plan_step(step({"r": self.TABLE}, r=1)).saves
        assert [ref.block_id for ref in rest.blocks] == [14, 15], "what found no room is saved when there is some"
        assert bench.count("save_dropped_blocks|reason=queue_full") == 0

    def test_what_finds_no_room_when_the_request_ends_is_dropped_and_counted(self) -> None:
        bench, asked = Bench(save_queue_blocks=4), request()
        bench.side.add(asked)
        bench.side.plan_step(step({"r": self.TABLE}, r=100))
        asked.num_computed_tokens = 100
        bench.side.finished(asked, self.TABLE)
        assert bench.side.plan_step(step(finished={"r"})).saves == []
        assert bench.count("save_dropped_blocks|reason=queue_full") == 2

    def test_without_an_agent_nothing_is_held(self) -> None:
        bench = Bench()
        bench.link.client = None  # type: ignore[assignment]
        bench.side.add(request())
        assert bench.side.plan_step(step({"r": self.TABLE}, r=100)).saves == []
        assert bench.pool.held == []


class TestStates:
    """Models with states: vLLM hands a state over with its exact block, at the end of a prompt."""

    SHAPE = Shape((GroupSpec(0, GroupKind.FULL, BLOCK), GroupSpec(1, GroupKind.STATE, 2 * BLOCK)), BLOCK)

    def handed_over(self, bench: Bench, *entries: tuple[int, int, int]) -> list[tuple[int, int]]:
        output = step()
        output.kv_connector_block_state.boundary_state_offloads = {"r": list(entries)}
        return [(ref.group, ref.block_id) for job in bench.side.plan_step(output).saves for ref in job.blocks]

    def test_a_state_at_a_block_end_is_saved_under_the_hash_of_that_end(self) -> None:
        bench, asked = Bench(self.SHAPE), request()
        bench.side.add(asked)
        output = step()
        output.kv_connector_block_state.boundary_state_offloads = {"r": [(1, 40, 64)]}
        (job,) = bench.side.plan_step(output).saves
        assert job.blocks == [(1, 40, asked.block_hashes[3])]

    def test_states_between_block_ends_null_blocks_and_unknown_ends_are_left(self) -> None:
        bench = Bench(self.SHAPE)
        bench.side.add(request())
        assert self.handed_over(bench, (1, 40, 48), (1, 0, 64), (1, 41, 640), (7, 42, 64), (1, 43, 32)) == [(1, 43)]

    def test_states_are_not_saved_with_the_other_blocks(self) -> None:
        bench = Bench(self.SHAPE)
        bench.side.add(request())
        (job,) = bench.side.plan_step(step({"r": ([10, 11, 12, 13], [20, 21])}, r=64)).saves
        assert {ref.group for ref in job.blocks} == {0}

    def test_states_of_unknown_requests_are_left(self) -> None:
        assert self.handed_over(Bench(self.SHAPE), (1, 40, 64)) == []


class TestPlaces:
    def test_a_hits_tokens_are_told_by_tier(self) -> None:
        bench, asked = Bench(), request()
        bench.agent.automatic = b"\1\1\2\2\2\2"
        assert bench.side.offer(asked, 0) == (96, True)
        assert bench.side.sources(asked, 96) == {1: 32, 2: 64}
        assert [bench.side.place_name(place) for place in (1, 2, 9)] == ["arena", "filesystem", ""]

    def test_a_request_without_an_offer_has_no_sources(self) -> None:
        bench = Bench()
        assert bench.side.sources(request(), 0) == {}
        bench.link.client = None  # type: ignore[assignment]
        assert bench.side.place_name(1) == ""


class TestAdapters:
    def test_a_request_whose_adapter_is_not_identified_neither_hits_nor_saves(self) -> None:
        bench, asked = Bench(), request()
        bench.side.open(bench.link, SimpleNamespace(of=lambda adapter: b""))  # type: ignore[arg-type]
        bench.agent.automatic = b"\1" * 9
        bench.side.add(asked)
        assert bench.side.offer(asked, 0) == (0, False)
        assert bench.side.plan_step(step({"r": TestSaves.TABLE}, r=100)).saves == []
        assert bench.pool.held == []

    def test_its_namespace_travels_with_every_job(self) -> None:
        bench, asked = Bench(), request()
        asked.lora_request = b"a" * 16  # the stand-in names the namespace itself
        bench.agent.automatic = b"\1" * 9
        bench.side.add(asked)
        bench.side.offer(asked, 0)
        bench.allocate(asked, 96, [1, 2, 3, 4, 5, 6])
        asked.num_computed_tokens = 96
        metadata = bench.side.plan_step(step({"r": TestSaves.TABLE}, r=4))
        assert [job.namespace for job in metadata.loads] == [b"a" * 16]


class TestDeadlines:
    def test_a_load_gets_what_computing_would_take(self) -> None:
        bench, asked = Bench(), request(tokens=1000)
        bench.side.plan_step(step(other=800))
        bench.clock.advance(2.0)
        bench.side.step_done(None)
        bench.agent.automatic = b"\1" * 99
        tokens, _ = bench.side.offer(asked, 0)
        assert tokens == 992
        bench.allocate(asked, 992, list(range(1, 63)))
        (job,) = bench.side.plan_step(step()).loads
        assert job.deadline_s == pytest.approx(992 / 400)

    def test_a_deadline_that_was_set_is_taken_as_it_is(self) -> None:
        bench, asked = Bench(load_deadline_s=7.5), request()
        bench.agent.automatic = b"\1" * 9
        bench.side.offer(asked, 0)
        bench.allocate(asked, 96, [1, 2, 3, 4, 5, 6])
        (job,) = bench.side.plan_step(step()).loads
        assert job.deadline_s == 7.5


ARENA, SLOW = 1, 2
SIZE = 4096  # of a block's payload; its frame is twice that


def slow(bytes_per_s: float, age_s: float = 0.0) -> TierRate:
    return TierRate(SLOW, 0.0, 1 / bytes_per_s, 0.05, 9, age_s)


class TestChoices:
    """A prompt of 96 tokens and six blocks takes this engine 9.6 s to compute: 5 kB of blocks a second."""

    def bench(self, shape: Shape = ONE, **settings: Any) -> Bench:
        bench = Bench(shape, **settings)
        bench.side.open(
            bench.link,  # type: ignore[arg-type]
            SimpleNamespace(of=lambda adapter: b"n" * 16),  # type: ignore[arg-type]
            EngineFacts({0: SIZE, 1: SIZE}, 1, 2048),
        )
        for number in range(3):
            asked = request(f"cold{number}", tokens=96)
            bench.side.add(asked)
            scheduled: dict[str, Any] = {asked.request_id: 96}
            bench.side.plan_step(step(**scheduled))
            bench.clock.advance(9.6)
            bench.side.step_done(None)
            bench.side.plan_step(step(finished={asked.request_id}))
        bench.stats.take()
        return bench

    def test_a_slow_tier_is_left_and_its_prompt_computed(self) -> None:
        bench = self.bench()
        bench.agent.automatic, bench.agent.rates = bytes([SLOW] * 6), [slow(1000)]
        assert bench.side.offer(request(), 0) == (0, False)
        taken = bench.stats.take()
        assert taken is not None
        counted = taken.data["add"]
        assert (counted["tokens_found"], counted["tokens_allowed"], counted["load_choices|choice=none"]) == (96, 0, 1)

    def test_a_fast_tier_is_loaded_from(self) -> None:
        bench = self.bench()
        bench.agent.automatic, bench.agent.rates = bytes([SLOW] * 6), [slow(100_000)]
        assert bench.side.offer(request(), 0) == (96, True)
        assert bench.count("load_choices|choice=all") == 1

    def test_the_part_in_fast_tiers_is_loaded_and_the_rest_computed(self) -> None:
        bench = self.bench()
        bench.agent.automatic, bench.agent.rates = bytes([ARENA] * 4 + [SLOW] * 2), [slow(1000)]
        asked = request()
        assert bench.side.offer(asked, 0) == (64, True)
        bench.allocate(asked, 64, [1, 2, 3, 4])
        (job,) = bench.side.plan_step(step()).loads
        assert [ref.block_id for ref in job.blocks] == [1, 2, 3, 4]
        assert bench.count("load_choices|choice=part") == 1

    @pytest.mark.parametrize(("settings", "rates"), [({"load_choice": "always"}, [slow(1000)]), ({}, [])])
    def test_everything_is_loaded_where_that_is_set_or_nothing_is_known(self, settings: Any, rates: Any) -> None:
        bench = self.bench(**settings)
        bench.agent.automatic, bench.agent.rates = bytes([SLOW] * 6), rates
        assert bench.side.offer(request(), 0) == (96, True)

    def test_while_others_are_computed_first_a_slow_load_costs_nothing(self) -> None:
        bench = self.bench()
        for number in range(8):
            bench.side.add(request(f"before{number}", tokens=96))
        bench.agent.automatic, bench.agent.rates = bytes([SLOW] * 6), [slow(1000)]
        assert bench.side.offer(request(), 0) == (96, True)

    def test_a_tier_that_is_left_is_looked_at_again_in_the_background(self) -> None:
        bench = self.bench()
        bench.agent.automatic, bench.agent.rates = bytes([SLOW] * 6), [slow(1000, age_s=60.0)]
        assert bench.side.offer(request(), 0) == (0, False)
        (keys,) = bench.agent.reads
        assert len(keys) == 1
        assert bench.count("sounded_blocks|tier=filesystem") == 1
        bench.side.offer(request("again"), 0)
        assert len(bench.agent.reads) == 1

    def test_what_a_load_was_worth_is_counted_and_told_to_the_agent(self) -> None:
        bench = self.bench()
        bench.agent.automatic = bytes([ARENA] * 6)
        asked = request()
        bench.side.offer(asked, 0)
        bench.allocate(asked, 96, [1, 2, 3, 4, 5, 6])
        bench.side.plan_step(step())
        bench.stats.take()
        bench.side.step_done(KveikWorkerMetadata(loaded={"r": set()}, load_seconds={"r": 0.6}))
        assert bench.count("seconds_saved|tier=arena") == pytest.approx(9.0, rel=0.01)
        bench.clock.advance(2.0)
        bench.side.offer(request("next"), 0)
        assert bench.agent.told[-1].gains["arena"].tokens == 96
        assert bench.agent.told[-1].prefill_steps == 3

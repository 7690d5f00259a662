"""The scheduler's side under any order of events, against a plain model of what it must keep to.

Hypothesis plays vLLM and the agent at once: requests come, are asked about, allocated, scheduled,
preempted and ended; lookups are answered late, never, with an error or with random presence; loads
fail at random blocks and saves are reported by each rank in its own time.
"""

from collections import Counter
from concurrent.futures import Future
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

pytest.importorskip("vllm", reason="the connector's scheduler side needs vLLM")

from kveik.agent.protocol import Located
from kveik.clock import FakeClock
from kveik.config import ConnectorSettings
from kveik.connector.jobs import KveikMetadata, KveikWorkerMetadata, SaveJob
from kveik.connector.metrics import StatsBox
from kveik.connector.plan import Shape
from kveik.connector.scheduler import SchedulerSide
from kveik.errors import AgentUnavailableError
from kveik.kv.groups import GroupKind, GroupSpec

HASH_TOKENS = 16
POOL_BLOCKS = 240
QUEUE_BLOCKS = 24
RANKS = (0, 1)
FULL = GroupSpec(0, GroupKind.FULL, HASH_TOKENS)
SHAPES = {
    "one group": Shape((FULL,), HASH_TOKENS),
    "window": Shape((FULL, GroupSpec(1, GroupKind.SLIDING_WINDOW, HASH_TOKENS, 33)), HASH_TOKENS),
    "state": Shape((FULL, GroupSpec(1, GroupKind.STATE, 2 * HASH_TOKENS)), HASH_TOKENS),
    "drafter": Shape((FULL,), HASH_TOKENS, drop_last_unit=True),
}


class CountingPool:
    """vLLM's pool as far as references go; a block freed more often than taken is an error."""

    def __init__(self) -> None:
        self.num_gpu_blocks = POOL_BLOCKS
        self.blocks = [SimpleNamespace(block_id=index, references=0) for index in range(POOL_BLOCKS)]

    def touch(self, blocks: Any) -> None:
        for block in blocks:
            block.references += 1

    def free_blocks(self, blocks: Any) -> None:
        for block in blocks:
            block.references -= 1
            assert block.references >= 0

    @property
    def references(self) -> dict[int, int]:
        return {block.block_id: block.references for block in self.blocks if block.references}


class OpenAgent:
    """Keeps every lookup open until the machine answers it."""

    def __init__(self) -> None:
        self.welcome = SimpleNamespace(places=["", "arena", "filesystem"])
        self.open: list[tuple[list[int], Future[Located]]] = []

    def submit_lookup(
        self, namespace: bytes, ranks: Any, parts: Any, deadline_s: float, engine: Any = None
    ) -> "Future[Located]":
        assert list(ranks) == list(RANKS)
        future: Future[Located] = Future()
        self.open.append(([len(hashes) for _, hashes in parts], future))
        return future


@dataclass
class Life:
    """What the model knows of one request."""

    request: Any
    local_tokens: int
    tables: tuple[list[int], ...]
    offered: int = 0
    loading: bool = False
    job: Any = None
    limit: int | None = None


class SchedulerMachine(RuleBasedStateMachine):
    """vLLM, the workers and the agent around one scheduler side."""

    def __init__(self) -> None:
        super().__init__()
        self.lives: dict[str, Life] = {}
        self.unreported: dict[int, tuple[SaveJob, int]] = {}
        self.taken: Counter[str] = Counter()
        self.jobs: Counter[str] = Counter()
        self.finished: set[str] = set()
        self.names = 0

    @initialize(shape=st.sampled_from(sorted(SHAPES)), whole=st.booleans())
    def build(self, shape: str, whole: bool) -> None:
        self.shape = SHAPES[shape]
        self.clock, self.stats, self.agent, self.pool = FakeClock(), StatsBox(), OpenAgent(), CountingPool()
        options = ConnectorSettings(save_queue_blocks=QUEUE_BLOCKS, whole_prompt_hits=whole)
        self.side = SchedulerSide(self.shape, RANKS, options, self.stats, clock=self.clock)
        self.side.bind_pool(self.pool)  # type: ignore[arg-type]
        link = SimpleNamespace(client=self.agent)
        self.side.open(link, SimpleNamespace(of=lambda adapter: b"n" * 16))  # type: ignore[arg-type]

    # -- what vLLM's scheduler does -------------------------------------------------------------

    @precondition(lambda self: len(self.lives) < 5)
    @rule(tokens=st.integers(1, 170), local_units=st.integers(0, 4))
    def a_request_comes(self, tokens: int, local_units: int) -> None:
        self.names += 1
        name = f"r{self.names}"
        unit = self.shape.unit_tokens
        local = min(local_units * unit, (tokens - 1) // unit * unit)
        request = SimpleNamespace(
            request_id=name,
            num_tokens=tokens,
            num_prompt_tokens=tokens,
            num_computed_tokens=0,
            block_hashes=[name.encode().ljust(31) + bytes([index]) for index in range(tokens // HASH_TOKENS)],
            skip_reading_prefix_cache=False,
            lora_request=None,
        )
        first = 1 + 40 * (self.names % 5)
        tables = tuple(
            list(range(first + 20 * place, first + 20 * place + tokens // group.block_tokens + 1))
            for place, group in enumerate(self.shape.groups)
        )
        self.lives[name] = Life(request, local, tables)
        self.side.add(request)

    @precondition(lambda self: self.idle())
    @rule(data=st.data(), takes=st.booleans())
    def the_scheduler_asks(self, data: st.DataObject, takes: bool) -> None:
        life = data.draw(st.sampled_from(self.idle()))
        tokens, asynchronous = self.side.offer(life.request, life.local_tokens)
        if tokens is None:
            return
        self.check_offer(life, tokens, asynchronous)
        if takes and tokens:
            blocks = SimpleNamespace(get_block_ids=lambda: life.tables)
            self.side.allocated(life.request, blocks, tokens)  # type: ignore[arg-type]
            life.offered, life.loading = tokens, True
            self.taken[life.request.request_id] += 1

    def check_offer(self, life: Life, tokens: int, asynchronous: bool) -> None:
        assert asynchronous == (tokens > 0)
        assert tokens % self.shape.unit_tokens == 0
        reach = life.local_tokens + tokens
        assert reach <= life.request.num_tokens
        assert reach <= len(life.request.block_hashes) * HASH_TOKENS or tokens == 0
        if life.limit is not None and tokens:
            assert reach <= life.limit

    @precondition(lambda self: self.runnable())
    @rule(data=st.data())
    def a_step_runs(self, data: st.DataObject) -> None:
        chosen = data.draw(st.lists(st.sampled_from(self.runnable()), unique_by=id, max_size=3))
        scheduled: dict[str, int] = {}
        for life in chosen:
            left = life.request.num_tokens - life.request.num_computed_tokens
            scheduled[life.request.request_id] = data.draw(st.integers(1, left))
        self.step(scheduled)
        for life in chosen:
            life.request.num_computed_tokens += scheduled[life.request.request_id]

    @precondition(lambda self: self.loading() or self.finished)
    @rule()
    def a_step_without_tokens_runs(self) -> None:
        self.step({})

    def step(self, scheduled: dict[str, int]) -> None:
        tables = {name: life.tables for name, life in self.lives.items()}
        output = SimpleNamespace(
            total_num_scheduled_tokens=sum(scheduled.values()),
            num_scheduled_tokens=scheduled,
            finished_req_ids=self.finished,
            kv_connector_block_state=SimpleNamespace(get_block_ids=tables.get, boundary_state_offloads={}),
        )
        self.take(self.side.plan_step(output))  # type: ignore[arg-type]
        self.finished = set()

    def take(self, metadata: KveikMetadata) -> None:
        for load in metadata.loads:
            self.jobs[load.request_id] += 1
            assert load.complete
            if load.request_id in self.lives:
                self.lives[load.request_id].job = load
        loading = {block_id for life in self.loading() for table in life.tables for block_id in table}
        for save in metadata.saves:
            assert not loading & {ref.block_id for ref in save.blocks}
            self.unreported[save.job_id] = (save, len(RANKS))

    @precondition(lambda self: self.lives)
    @rule(data=st.data())
    def a_request_ends(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.lives)))
        life = self.lives[name]
        if life.loading and life.job is None:
            return  # vLLM hands the job out in the step that allocated
        self.side.finished(life.request, life.tables)
        del self.lives[name]
        self.finished.add(name)

    # -- what the agent does --------------------------------------------------------------------

    @precondition(lambda self: self.agent.open)
    @rule(data=st.data())
    def a_lookup_is_answered(self, data: st.DataObject) -> None:
        counts, future = self.agent.open.pop(data.draw(st.integers(0, len(self.agent.open) - 1)))
        if not future.set_running_or_notify_cancel():
            return
        if data.draw(st.integers(0, 9)) == 0:
            future.set_exception(AgentUnavailableError("the connection broke"))
            return
        places = st.sampled_from([0, 1, 1, 1, 1, 1, 2])
        answers = [bytes(data.draw(st.lists(places, min_size=count, max_size=count))) for count in counts]
        future.set_result(Located(1, answers))

    @rule(seconds=st.sampled_from([0.001, 0.03, 0.06, 3.0, 40.0]))
    def time_passes(self, seconds: float) -> None:
        self.clock.advance(seconds)

    # -- what the workers do --------------------------------------------------------------------

    @precondition(lambda self: any(life.job for life in self.loading()))
    @rule(data=st.data())
    def a_load_ends(self, data: st.DataObject) -> None:
        life = data.draw(st.sampled_from([life for life in self.loading() if life.job]))
        refs = [(ref.group, ref.block_hash) for ref in life.job.blocks]
        failed = set(data.draw(st.lists(st.sampled_from(refs), max_size=2)))
        self.side.step_done(KveikWorkerMetadata(loaded={life.request.request_id: set(failed)}))
        reached = life.local_tokens + life.offered
        if failed:
            life.limit = reached - self.shape.unit_tokens
        else:
            life.request.num_computed_tokens = min(reached, life.request.num_tokens - 1)
        life.loading, life.job, life.offered = False, None, 0

    @precondition(lambda self: self.unreported)
    @rule(data=st.data(), ranks=st.integers(1, len(RANKS)))
    def ranks_report_a_save(self, data: st.DataObject, ranks: int) -> None:
        job_id = data.draw(st.sampled_from(sorted(self.unreported)))
        save, missing = self.unreported[job_id]
        ranks = min(ranks, missing)
        self.side.step_done(KveikWorkerMetadata(saved={job_id: ranks}))
        if missing == ranks:
            del self.unreported[job_id]
        else:
            self.unreported[job_id] = (save, missing - ranks)

    # -- what must hold at any time -------------------------------------------------------------

    def idle(self) -> list[Life]:
        return [life for life in self.lives.values() if not life.loading and not life.request.num_computed_tokens]

    def loading(self) -> list[Life]:
        return [life for life in self.lives.values() if life.loading]

    def runnable(self) -> list[Life]:
        lives = [life for life in self.lives.values() if not life.loading]
        return [life for life in lives if life.request.num_computed_tokens < life.request.num_tokens]

    @invariant()
    def the_pool_holds_exactly_the_blocks_of_unreported_saves(self) -> None:
        if not hasattr(self, "side"):
            return
        waiting = [save for save, _ in self.unreported.values()] + self.side._saves
        expected: dict[int, int] = {}
        for save in waiting:
            for block_id in {ref.block_id for ref in save.blocks}:
                expected[block_id] = expected.get(block_id, 0) + 1
        assert self.pool.references == expected
        assert sum(expected.values()) <= QUEUE_BLOCKS
        assert self.side.has_saves_under_way == bool(waiting)

    @invariant()
    def each_taken_offer_yields_at_most_one_load(self) -> None:
        assert self.jobs <= self.taken

    def teardown(self) -> None:
        if not hasattr(self, "side"):
            return
        self.step({})
        assert self.jobs == self.taken
        for job_id, (_, missing) in self.unreported.items():
            self.side.step_done(KveikWorkerMetadata(saved={job_id: missing}))
        assert self.pool.references == {}
        assert not self.side.has_saves_under_way


TestAnyOrderOfEvents = SchedulerMachine.TestCase
TestAnyOrderOfEvents.settings = settings(max_examples=40, stateful_step_count=40, deadline=None)

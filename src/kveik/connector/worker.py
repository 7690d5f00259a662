"""The worker's side: copies blocks between KV memory and arena slots on two threads of its own.

The engine's thread only queues jobs and collects results. Loads and saves have separate threads,
so that a load never waits for a save. A block's way is always: slot -> verify -> copy -> check that
the slot did not change meanwhile; only then does it count as loaded.
"""

import contextlib
import logging
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field

from kveik.agent.client import AgentClient
from kveik.agent.granted_slot import GrantedSlot
from kveik.agent.link import AgentLink
from kveik.agent.protocol import Committed, Granted, Reserved
from kveik.clock import Deadline
from kveik.config import ConnectorSettings
from kveik.connector.device import BlockCopier
from kveik.connector.faults import FaultPlanter
from kveik.connector.jobs import KveikWorkerMetadata, LoadJob, SaveJob
from kveik.connector.layout import BlockLayout
from kveik.connector.metrics import StatsBox
from kveik.connector.plan import BlockRef
from kveik.errors import (
    AgentError,
    AgentTimeoutError,
    AgentUnavailableError,
    FrameCorruptError,
    FrameError,
    FrameForeignError,
)
from kveik.kv import frame
from kveik.kv.keys import BlockKey
from kveik.store.base import Status

logger = logging.getLogger(__name__)
READS_AHEAD = 2
#: Steps of a save that are reserved while an earlier one is copied.
RESERVES_AHEAD = 1
FailedKeys = set[tuple[int, bytes]]


@dataclass
class WorkerReport:
    """What the threads finished since the engine's thread last asked. Guarded by ``lock``."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    received: set[str] = field(default_factory=set)
    failed_requests: set[str] = field(default_factory=set)
    failed_blocks: set[int] = field(default_factory=set)
    saved: dict[int, int] = field(default_factory=dict)
    loaded: dict[str, FailedKeys] = field(default_factory=dict)
    load_seconds: dict[str, float] = field(default_factory=dict)
    dropped: dict[int, dict[str, int]] = field(default_factory=dict)
    failures: dict[str, dict[str, int]] = field(default_factory=dict)


@dataclass(slots=True)
class Loading:
    """A load under way: indices of blocks that are not there yet, and how many failed for which reason."""

    missing: set[int]
    failures: dict[str, int] = field(default_factory=dict)


@dataclass(slots=True)
class Saving:
    """A save under way: how many blocks have an open fate, and how many were not saved for which reason."""

    left: int
    dropped: dict[str, int] = field(default_factory=dict)


class WorkerSide:
    """One rank's worker. ``rank`` is the rank in keys: pipeline rank x TP size + tensor rank."""

    def __init__(
        self,
        layout: BlockLayout,
        copier: BlockCopier,
        rank: int,
        settings: ConnectorSettings,
        stats: StatsBox,
        link: AgentLink,
    ) -> None:
        self._layout = layout
        self._copier = copier
        self._rank = rank
        self._settings = settings
        self._stats = stats
        self._link = link
        self._report = WorkerReport()
        self._loads: queue.SimpleQueue[tuple[LoadJob, Deadline]] = queue.SimpleQueue()
        self._saves: queue.SimpleQueue[tuple[SaveJob, object]] = queue.SimpleQueue()
        self._faults = FaultPlanter.named(settings.plant_fault, layout)
        self._loaded_blocks = 0
        self._scratch = bytearray()
        self._start("kveik-load", self._load_loop)
        self._start("kveik-save", self._save_loop)

    @staticmethod
    def _start(name: str, target: Callable[[], None]) -> None:
        threading.Thread(target=target, name=name, daemon=True).start()

    # -- the engine's thread --------------------------------------------------------------------

    def queue_load(self, job: LoadJob) -> None:
        """Start a load; its deadline starts now."""
        self._loads.put((job, Deadline.after(job.deadline_s)))

    def queue_save(self, job: SaveJob) -> None:
        """Start a save of blocks that the work queued so far on the device computes."""
        self._saves.put((job, self._copier.fence()))

    def take_received(self) -> tuple[set[str], set[str]]:
        """Requests whose load ended, and those of them that failed as a whole (several groups)."""
        with self._report.lock:
            received, self._report.received = self._report.received, set()
            failed, self._report.failed_requests = self._report.failed_requests, set()
            return received, failed

    def take_failed_blocks(self) -> set[int]:
        """Engine blocks that hold nothing valid (one group)."""
        with self._report.lock:
            failed, self._report.failed_blocks = self._report.failed_blocks, set()
            return failed

    def take_metadata(self) -> KveikWorkerMetadata | None:
        """Finished saves and loads for the scheduler, or None."""
        with self._report.lock:
            if not self._report.saved and not self._report.loaded:
                return None
            report = self._report
            metadata = KveikWorkerMetadata(
                report.saved, report.loaded, report.load_seconds, report.dropped, report.failures
            )
            report.saved, report.loaded, report.load_seconds, report.dropped, report.failures = {}, {}, {}, {}, {}
            return metadata

    # -- loading --------------------------------------------------------------------------------

    def _load_loop(self) -> None:
        while True:
            job, deadline = self._loads.get()
            started = time.perf_counter()
            loading = Loading(set(range(len(job.blocks))))
            try:
                if job.complete:
                    self._load(job, deadline, loading)
            except AgentError as error:
                left = self._failed_rest(loading, "timeout" if isinstance(error, AgentTimeoutError) else "unavailable")
                logger.warning("Kveik: load of %d blocks gave up %d of them: %s", len(job.blocks), left, error)
            except Exception:  # whatever it is: the request must go on, by computing
                self._failed_rest(loading, "io_error")
                logger.exception("Kveik: load of %d blocks broke; they are computed instead", len(job.blocks))
            seconds = time.perf_counter() - started
            self._stats.add("load_seconds", seconds)
            self._finish_load(job, loading, seconds)

    def _failed(self, loading: Loading, reason: str, blocks: int = 1) -> None:
        self._stats.add("load_failures", blocks, reason=reason)
        loading.failures[reason] = loading.failures.get(reason, 0) + blocks

    def _failed_rest(self, loading: Loading, reason: str) -> int:
        """All that is missing and has no reason yet; how many that are."""
        left = max(0, len(loading.missing) - sum(loading.failures.values()))
        self._failed(loading, reason, left)
        return left

    def _finish_load(self, job: LoadJob, loading: Loading, seconds: float) -> None:
        failed = [job.blocks[index] for index in sorted(loading.missing)]
        with self._report.lock:
            if loading.failures:
                self._report.failures[job.request_id] = loading.failures
            self._report.load_seconds[job.request_id] = seconds
            self._report.received.add(job.request_id)
            self._report.loaded[job.request_id] = {(ref.group, ref.block_hash) for ref in failed}
            if len(self._layout.planes) == 1:
                self._report.failed_blocks.update(ref.block_id for ref in failed)
            elif failed or not job.complete:
                self._report.failed_requests.add(job.request_id)

    def _load(self, job: LoadJob, deadline: Deadline, loading: Loading) -> None:
        """Load all blocks; indices that succeeded leave ``loading.missing``."""
        client = self._client()
        under_way: deque[tuple[list[int], list[BlockKey], Future[Granted]]] = deque()
        try:
            for indices in self._steps(job.blocks):
                keys = self._keys([job.blocks[index] for index in indices], job.namespace)
                sizes = [self._layout.payload_bytes(job.blocks[index].group) for index in indices]
                under_way.append((indices, keys, client.submit_read(keys, sizes, deadline.remaining_s)))
                if len(under_way) > READS_AHEAD:
                    self._load_step(client, job, *under_way.popleft(), deadline, loading)
            while under_way:
                self._load_step(client, job, *under_way.popleft(), deadline, loading)
        finally:
            for _, _, future in under_way:
                _give_up(client, future)

    def _load_step(
        self,
        client: AgentClient,
        job: LoadJob,
        indices: list[int],
        keys: list[BlockKey],
        future: Future[Granted],
        deadline: Deadline,
        loading: Loading,
    ) -> None:
        granted = client.wait(future, Granted, deadline)
        try:
            for index, key, grant in zip(indices, keys, granted.grants, strict=True):
                if grant.status != Status.HIT.value:
                    self._failed(loading, grant.reason or grant.status)
                elif reason := self._load_block(client, job.blocks[index], key, client.slot(grant)):
                    self._failed(loading, reason)
                else:
                    loading.missing.discard(index)
                    tier = client.welcome.places[grant.place]
                    self._stats.add("loaded_blocks", tier=tier)
                    self._stats.add("loaded_bytes", grant.frame_bytes, tier=tier)
        finally:
            client.release(granted.lease)

    def _load_block(self, client: AgentClient, ref: BlockRef, key: BlockKey, slot: GrantedSlot) -> str:
        """Verify, copy, and check that nothing changed under the copy; why it failed, empty if it did not."""
        payload_bytes = self._layout.payload_bytes(ref.group)
        try:
            header = slot.header(key)
            if header.payload_bytes != payload_bytes:
                raise FrameForeignError(f"{header.payload_bytes} bytes a block, expected {payload_bytes}")
            if frame.payload_digest(slot.payload) != header.payload_digest:
                raise FrameCorruptError(f"payload checksum differs: {key}")
        except FrameError as error:
            self._stats.add("corrupt_blocks")
            client.report([key], "checksum")
            logger.error("Kveik: block %s is refused and computed instead: %s", key, error)
            return "checksum"
        self._copier.from_slot(self._layout.planes[ref.group], ref.block_id, slot.payload)
        if not slot.unchanged():
            return "reused"
        return "" if self._reads_back(ref, header) else "read_back"

    def _reads_back(self, ref: BlockRef, header: frame.FrameHeader) -> bool:
        """Every N-th block: what lies in the engine's memory now must have the frame's digest."""
        self._loaded_blocks += 1
        every = self._settings.read_back_every
        if every == 0 or self._loaded_blocks % every:
            return True
        if len(self._scratch) < header.payload_bytes:
            self._scratch = bytearray(header.payload_bytes)
        view = memoryview(self._scratch)[: header.payload_bytes]
        self._copier.to_slot(self._layout.planes[ref.group], ref.block_id, view)
        self._stats.add("read_back_blocks")
        if frame.payload_digest(view) == header.payload_digest:
            return True
        self._stats.add("read_back_mismatches")
        logger.error("Kveik: block %s reads back differently from the engine's memory", header.key)
        return False

    # -- saving ---------------------------------------------------------------------------------

    def _save_loop(self) -> None:
        while True:
            job, fence = self._saves.get()
            started = time.perf_counter()
            saving = Saving(len(job.blocks))
            try:
                self._copier.wait(fence)
                self._save(job, saving)
            except AgentError as error:
                self._drop(saving, "timeout" if isinstance(error, AgentTimeoutError) else "unavailable", saving.left)
            except Exception:  # a save is best effort: the engine goes on
                self._drop(saving, "io_error", saving.left)
                logger.exception("Kveik: a save broke; its blocks are not in the cache")
            self._stats.add("save_seconds", time.perf_counter() - started)
            with self._report.lock:
                self._report.saved[job.job_id] = 1
                if saving.dropped:
                    self._report.dropped[job.job_id] = saving.dropped

    def _drop(self, saving: Saving, reason: str, blocks: int = 1) -> None:
        self._stats.add("save_dropped_blocks", blocks, reason=reason)
        saving.dropped[reason] = saving.dropped.get(reason, 0) + blocks

    def _save(self, job: SaveJob, saving: Saving) -> None:
        """Save all blocks; ``saving.left`` counts those whose fate is open.

        The agent reserves the next step and publishes the last one while this thread copies.
        """
        client = self._client()
        deadline = Deadline.after(self._settings.save_deadline_s)
        reserving: deque[tuple[list[BlockRef], Future[Reserved]]] = deque()
        publishing: list[tuple[int, Future[Committed]]] = []
        try:
            for indices in self._steps(job.blocks):
                refs = [job.blocks[index] for index in indices]
                keys, size = self._keys(refs, job.namespace), self._layout.payload_bytes(refs[0].group)
                reserving.append((refs, client.submit_reserve(keys, size, deadline.remaining_s)))
                if len(reserving) > RESERVES_AHEAD:
                    publishing += self._save_step(client, *reserving.popleft(), deadline, saving)
            while reserving:
                publishing += self._save_step(client, *reserving.popleft(), deadline, saving)
        except AgentError:
            with contextlib.suppress(AgentError):  # the first error says more
                self._count_saved(client, publishing, deadline, saving)
            raise
        finally:
            for _, future in reserving:
                _give_up(client, future)
        self._count_saved(client, publishing, deadline, saving)

    def _save_step(
        self, client: AgentClient, refs: list[BlockRef], future: Future[Reserved], deadline: Deadline, saving: Saving
    ) -> list[tuple[int, Future[Committed]]]:
        """Copy one step's blocks; the payload size and the answer to come, unless nothing was to copy."""
        reserved = client.wait(future, Reserved, deadline)
        size = self._layout.payload_bytes(refs[0].group)
        digests: list[tuple[int, bytes]] = []
        try:
            for index, (ref, grant) in enumerate(zip(refs, reserved.grants, strict=True)):
                if grant.status == Status.STORED.value:
                    payload = client.payload(grant, size)
                    self._copier.to_slot(self._layout.planes[ref.group], ref.block_id, payload)
                    self._faults.damage(ref.group, payload)
                    digests.append((index, frame.payload_digest(payload)))
                    continue
                saving.left -= 1
                if grant.status == Status.EXISTS.value:
                    self._stats.add("save_skipped_blocks")
                else:
                    self._drop(saving, grant.reason or grant.status)
        except BaseException:
            client.release(reserved.lease)
            raise
        if digests:
            return [(size, client.submit_commit(reserved.lease, digests, deadline.remaining_s))]
        client.release(reserved.lease)
        return []

    def _count_saved(
        self, client: AgentClient, publishing: list[tuple[int, Future[Committed]]], deadline: Deadline, saving: Saving
    ) -> None:
        for payload_bytes, future in publishing:
            statuses = client.wait(future, Committed, deadline).statuses
            saving.left -= len(statuses)
            stored = sum(status == Status.STORED.value for status in statuses)
            self._stats.add("saved_blocks", stored)
            self._stats.add("saved_bytes", stored * frame.frame_bytes(payload_bytes))
            if stored < len(statuses):
                self._drop(saving, "commit", len(statuses) - stored)

    # -- shared ---------------------------------------------------------------------------------

    def _client(self) -> AgentClient:
        client = self._link.client
        if client is None:
            raise AgentUnavailableError("not attached to an agent")
        return client

    def _keys(self, refs: Sequence[BlockRef], namespace: bytes) -> list[BlockKey]:
        return [BlockKey.of(namespace, ref.block_hash, ref.group, self._rank) for ref in refs]

    def _steps(self, blocks: Sequence[BlockRef]) -> Iterator[list[int]]:
        """Indices of blocks in steps of about ``batch_bytes``, each of one block size, in order."""
        step: list[int] = []
        step_bytes = 0
        for index, ref in enumerate(blocks):
            size = self._layout.payload_bytes(ref.group)
            full = step_bytes + size > self._settings.batch_bytes
            if step and (full or self._layout.payload_bytes(blocks[step[0]].group) != size):
                yield step
                step, step_bytes = [], 0
            step.append(index)
            step_bytes += size
        if step:
            yield step


def _give_up(client: AgentClient, future: Future[Granted] | Future[Reserved]) -> None:
    """Nobody waits for these slots any more: a lease in an answer that came already is released."""
    if not future.cancel() and future.exception() is None:
        client.release(future.result().lease)

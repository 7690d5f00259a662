"""When to sweep: one thread a process, working only while it holds the folder's lease."""

import threading
from dataclasses import replace

from kveik.clock import Clock
from kveik.records import EvictionRecord, Listener
from kveik.store.filesystem_files import FileTree
from kveik.store.filesystem_lease import SweeperLease
from kveik.store.filesystem_options import FilesystemOptions
from kveik.store.filesystem_space import FreeSpace, Usage
from kveik.store.filesystem_sweep import Space, SweepReport, bytes_to_free, sweep

#: Rounds take at most this share of the time: regular ones, and ones that are pressed for.
_REGULAR_SHARE = 0.02
_PRESSED_SHARE = 0.1
_PRESSED_GAP_S = 0.1


class FolderSweeper:
    """Counts, cleans and evicts on behalf of one store, when it is this process's turn."""

    def __init__(
        self,
        name: str,
        tree: FileTree,
        options: FilesystemOptions,
        usage: Usage,
        free: FreeSpace,
        listener: Listener,
        clock: Clock,
    ) -> None:
        self._name = name
        self._tree = tree
        self._options = options
        self._usage = usage
        self._free = free
        self._listener = listener
        self._clock = clock
        self._lease = SweeperLease(tree, options.lease_stale_s, clock)
        self._condition = threading.Condition()
        self._pressed = False
        self._wanted = 0
        self._disk_full = False
        self._started = False
        self._closed = False
        self._round_ended_s = float("-inf")
        self._round_took_s = 0.0
        self._adopted_round = 0
        self.state = "nobody has swept yet"

    def __repr__(self) -> str:
        return f"FolderSweeper({self._lease!r}, {self.state!r})"

    def start(self) -> None:
        """Sweep from now on, in a thread."""
        self._started = True
        threading.Thread(target=self._work, name=f"kveik-{self._name}-sweep", daemon=True).start()

    def press(self, *, wanted: int = 0, disk_full: bool = False) -> None:
        """Ask for a round soon: there is little room, or none for a block of ``wanted`` bytes."""
        with self._condition:
            self._pressed = True
            self._wanted = max(self._wanted, wanted)
            self._disk_full = self._disk_full or disk_full
            self._condition.notify_all()

    def close(self) -> None:
        """End the thread, which gives the lease up; without a thread give it up here. Does not wait for a round."""
        with self._condition:
            self._closed = True
            self._condition.notify_all()
        if not self._started:
            self._lease.release()

    def round(self) -> SweepReport | None:
        """One round now; None when closed or when another process holds the lease. Raises ``OSError``."""
        return self._sweep() if not self._closed and self._hold_lease() else None

    def _hold_lease(self) -> bool:
        held = self._lease.keep(self._usage.last_count())
        if held:
            self.state = "this process sweeps"
            return True
        note = self._lease.seen
        if note is not None:
            self.state = f"process {note.pid} on host {note.host} sweeps"
            if note.count.round not in (0, self._adopted_round):
                self._adopted_round = note.count.round
                self._usage.counted(note.count.blocks, note.count.bytes)
        return False

    def _sweep(self) -> SweepReport:
        with self._condition:
            wanted, disk_full = self._wanted, self._disk_full
            self._pressed, self._wanted, self._disk_full = False, 0, False
        space = replace(self._space(self._usage.read()[1]), wanted=wanted, disk_full=disk_full)
        self._usage.begin_count()
        report = sweep(
            self._tree,
            space,
            leftover_age_s=self._options.leftover_age_s,
            clock=self._clock,
            beat=lambda: self._lease.keep_if_due(self._usage.last_count()),
        )
        self._usage.counted(report.blocks, report.bytes)
        self._round_ended_s = self._clock.monotonic()
        self._round_took_s = report.seconds
        if report.evicted_blocks:
            self._listener(EvictionRecord(self._name, report.evicted_blocks, report.evicted_bytes))
        estimate_was_low = space.used < report.bytes
        if (report.evicted_blocks or estimate_was_low) and bytes_to_free(self._space(report.bytes)):
            self.press()
        return report

    def _space(self, used: int) -> Space:
        options = self._options
        return Space(used, options.limit_bytes, self._free.read(fresh=True), options.reserve_bytes)

    def _work(self) -> None:
        while not self._wait():
            try:
                if self._hold_lease() and self._due():
                    self._sweep()
            except OSError as error:
                # The mount may come back: reads and writes have their own answers to that.
                self.state = f"cannot sweep: {error}"
        self._lease.release()

    def _due(self) -> bool:
        pause_s = max(self._options.sweep_interval_s, self._round_took_s / _REGULAR_SHARE)
        return self._pressed or self._clock.monotonic() >= self._round_ended_s + pause_s

    def _wait(self) -> bool:
        """Wait for the next turn; true when closed."""
        first = self._round_ended_s == float("-inf")
        turn_s = 0.0 if first else min(self._options.sweep_interval_s, self._options.lease_stale_s / 3)
        gap_s = max(_PRESSED_GAP_S, self._round_took_s / _PRESSED_SHARE)
        with self._condition:
            if not first and self._condition.wait_for(lambda: self._closed, min(gap_s, turn_s)):
                return True
            self._condition.wait_for(lambda: self._closed or self._pressed, max(0.0, turn_s - gap_s))
            return self._closed

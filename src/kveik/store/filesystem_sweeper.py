"""When to sweep: one thread a process, working only while it holds the folder's lease.

Where the folder has a limit, processes that write there are known to each other
(:mod:`kveik.store.filesystem_writers`), and the room that is left is given away in shares
(:mod:`kveik.store.filesystem_quota`): after each count, and between counts by what processes report. A process that
needs a new share, but does not sweep, leaves a note for the one that does.
"""

import contextlib
import os
import threading
from collections.abc import Mapping
from dataclasses import replace

from kveik.clock import Clock
from kveik.records import EvictionRecord, Listener
from kveik.store.filesystem_files import FileTree, read_into, unless_full
from kveik.store.filesystem_layout import WANTED_NAME, writer_name
from kveik.store.filesystem_lease import LeaseNote, SweeperLease
from kveik.store.filesystem_options import FilesystemOptions
from kveik.store.filesystem_quota import Allowance, Round, ShareBook
from kveik.store.filesystem_space import FreeSpace, Usage
from kveik.store.filesystem_sweep import Space, SweepReport, bytes_to_free, sweep
from kveik.store.filesystem_writers import WriterFiles

#: Rounds take at most this share of the time: regular ones, and ones that are pressed for.
_REGULAR_SHARE = 0.02
_PRESSED_SHARE = 0.1
_PRESSED_GAP_S = 0.1
#: In turns (``shared_turn_s``): where several write, shares are given so far apart at least, and one is good for so
#: long after its process looked last. So nobody writes by a share of the time before the last.
_SHARED_GAP_TURNS = 2.5
SHARE_GOOD_TURNS = 2.0
_WANTED_DIGITS = 20


class FolderSweeper:
    """Counts, cleans and evicts on behalf of one store, when it is this process's turn."""

    def __init__(
        self,
        name: str,
        tree: FileTree,
        options: FilesystemOptions,
        usage: Usage,
        free: FreeSpace,
        allowance: Allowance,
        listener: Listener,
        clock: Clock,
    ) -> None:
        self._name = name
        self._tree = tree
        self._options = options
        self._usage = usage
        self._free = free
        self._allowance = allowance
        self._listener = listener
        self._clock = clock
        self._lease = SweeperLease(tree, options.lease_stale_s, clock)
        self._writers = WriterFiles(tree, writer_name(self._lease.owner), options.lease_stale_s, clock)
        self._shared = options.limit_bytes > 0 and options.sweep_interval_s > 0
        self._book = ShareBook()
        self._gave_at_s = float("-inf")
        self._condition = threading.Condition()
        self._pressed = False
        self._wanted = 0
        self._disk_full = False
        self._started = False
        self._waited = False
        self._closed = False
        self._round_ended_s = float("-inf")
        self._round_took_s = 0.0
        self._adopted = ("", 0)
        self._adopted_gift = ("", 0)
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
            if note.count.round and self._adopted != (note.owner, note.count.round):
                self._adopt(note)
            if note.gift and self._adopted_gift != (note.owner, note.gift):
                self._take_share(note)
        return False

    def _adopt(self, note: LeaseNote) -> None:
        """Take over what another process counted."""
        self._adopted = (note.owner, note.count.round)
        self._usage.counted(note.count.blocks, note.count.bytes)

    def _take_share(self, note: LeaseNote) -> None:
        """Take the share that another process gave."""
        self._adopted_gift = (note.owner, note.gift)
        mine = note.writers.get(writer_name(self._lease.owner))
        self._allowance.renew(Round(note.room_bytes, len(note.writers), mine is not None, mine or 0))

    def _sweep(self) -> SweepReport:
        with self._condition:
            wanted, disk_full = self._wanted, self._disk_full
            self._pressed, self._wanted, self._disk_full = False, 0, False
        space = replace(self._space(self._usage.read()[1]), wanted=wanted, disk_full=disk_full)
        reported = self._reports()
        self._usage.begin_count()
        report = sweep(
            self._tree,
            space,
            leftover_age_s=self._options.leftover_age_s,
            clock=self._clock,
            beat=self._beat,
        )
        self._usage.counted(report.blocks, report.bytes)
        self._book.counted(report.bytes, reported)
        self._give(report.bytes, reported)
        self._round_ended_s = self._clock.monotonic()
        self._round_took_s = report.seconds
        if report.evicted_blocks:
            self._listener(EvictionRecord(self._name, report.evicted_blocks, report.evicted_bytes))
        estimate_was_low = space.used < report.bytes
        if (report.evicted_blocks or estimate_was_low) and bytes_to_free(self._space(report.bytes)):
            self.press()
        return report

    def _reports(self) -> dict[str, int]:
        """What each process has written, as far as it is reported; of this one it is up to date."""
        written = self._allowance.written_bytes
        if not self._shared:
            return {writer_name(self._lease.owner): written}
        self._writers.keep(written)
        return self._writers.living()

    def _give(self, used: int, reported: Mapping[str, int]) -> None:
        """Give what room is left to those who write."""
        self._gave_at_s = self._clock.monotonic()
        self._book.given(reported.keys())
        room = self._options.limit_bytes - used
        self._allowance.renew(Round(room, len(reported), True, reported[writer_name(self._lease.owner)]))
        if self._shared:
            self._lease.announce(self._usage.last_count(), reported, room)

    def _beat(self) -> None:
        """A round takes its time: let the others know meanwhile that this process is alive."""
        self._lease.keep_if_due(self._usage.last_count())
        if self._shared:
            with contextlib.suppress(OSError):
                self._writers.keep(self._allowance.written_bytes)
            self._allowance.heard()

    def _space(self, used: int) -> Space:
        options = self._options
        return Space(used, options.limit_bytes, self._free.read(fresh=True), options.reserve_bytes)

    def _work(self) -> None:
        while not self._wait():
            try:
                self._turn()
            except OSError as error:
                # The mount may come back: reads and writes have their own answers to that.
                self.state = f"cannot sweep: {error}"
        self._lease.release()
        if self._shared:
            self._writers.leave()

    def _turn(self) -> None:
        """Look who sweeps, and do what is this process's to do. Raises ``OSError``."""
        if self._shared:
            self._writers.keep(self._allowance.written_bytes)
        held = self._hold_lease()
        self._allowance.heard()
        if not held:
            if self._pressed:
                self._ask_for_room()
            return
        self._hear_others()
        reported = self._reports()
        if self._must_count(reported):
            self._sweep()
        elif self._shared and self._should_give(reported):
            with self._condition:
                self._pressed, self._wanted = False, 0
            self._give(self._book.used(reported), reported)

    def _hear_others(self) -> None:
        """Look whether somebody needs room, or a share of it."""
        with self._tree.directory() as directory:
            buffer = memoryview(bytearray(_WANTED_DIGITS))
            with contextlib.suppress(FileNotFoundError):
                _, count = read_into(directory, WANTED_NAME, buffer)
                os.unlink(WANTED_NAME, dir_fd=directory)
                self._press_for(bytes(buffer[:count]))

    def _press_for(self, told: bytes) -> None:
        """What another process wants: bytes, and after them ``full`` if its write met a full disk."""
        digits, _, full = told.partition(b" ")
        wanted = int(digits) if digits.isdigit() else 0
        self.press(wanted=min(wanted, self._options.limit_bytes // 2 or wanted), disk_full=full == b"full")

    def _ask_for_room(self) -> None:
        """Leave a note for whoever sweeps."""
        with self._condition:
            told = f"{self._wanted} full" if self._disk_full else str(self._wanted)
            self._pressed, self._wanted, self._disk_full = False, 0, False
        with unless_full(), self._tree.directory(create=True) as directory:
            self._tree.replace(directory, "wanted", WANTED_NAME, told.encode("ascii"))

    def _must_count(self, reported: Mapping[str, int]) -> bool:
        """Whether a round is due: a regular one, or one for which there is a need and the time."""
        now_s = self._clock.monotonic()
        if not self._may_give(now_s):  # a round ends with giving shares
            return False
        regular_s = max(self._options.sweep_interval_s, self._round_took_s / _REGULAR_SHARE)
        if now_s >= self._round_ended_s + regular_s:
            return True
        pause_s = max(_PRESSED_GAP_S, self._round_took_s / _PRESSED_SHARE)
        return now_s >= self._round_ended_s + pause_s and self._needs_count(reported)

    def _needs_count(self, reported: Mapping[str, int]) -> bool:
        if not self._shared:
            return self._pressed
        if self._disk_full or self._book.lost_one(reported.keys()):
            return True
        used = self._book.used(reported)
        space = replace(self._space(used), wanted=self._wanted)
        return bytes_to_free(space) > 0

    def _should_give(self, reported: Mapping[str, int]) -> bool:
        """Whether shares may be given by what was reported, without counting."""
        wanted = self._pressed or self._book.grew(reported.keys())
        return wanted and self._may_give(self._clock.monotonic()) and not self._book.lost_one(reported.keys())

    def _may_give(self, now_s: float) -> bool:
        """Whether all who have a share have looked since it was given."""
        turns = _SHARED_GAP_TURNS if self._book.shares > 1 else 0.0
        return now_s >= self._gave_at_s + turns * self._options.shared_turn_s

    def _wait(self) -> bool:
        """Wait for the next turn; true when closed."""
        first, self._waited = not self._waited, True
        longest_s = self._options.shared_turn_s if self._shared else self._options.sweep_interval_s
        turn_s = 0.0 if first else min(self._options.sweep_interval_s, self._options.lease_stale_s / 3, longest_s)
        gap_s = turn_s if self._book.shares > 1 else max(_PRESSED_GAP_S, self._round_took_s / _PRESSED_SHARE)
        with self._condition:
            if not first and self._condition.wait_for(lambda: self._closed, min(gap_s, turn_s)):
                return True
            self._condition.wait_for(lambda: self._closed or self._pressed, max(0.0, turn_s - gap_s))
            return self._closed

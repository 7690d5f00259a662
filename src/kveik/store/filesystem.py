"""The filesystem tier: one file a block, in a folder that several nodes may share.

Results are decided here; names are in :mod:`kveik.store.filesystem_layout`, system calls in
:mod:`~kveik.store.filesystem_files`, eviction in :mod:`~kveik.store.filesystem_sweep`.

Where the folder lies on a network file system, whose clients keep names, sizes and bytes for a while, an absent name
is asked for again before it counts as absent, and a file is found wrong only after two looks apart. Nothing relies on
access times.
"""

import contextlib
import errno
import json
import os
from collections.abc import Iterator, Sequence

from kveik.clock import SYSTEM_CLOCK, Clock, Deadline
from kveik.errors import FrameError, FrameForeignError, StoreError
from kveik.kv import frame
from kveik.kv.keys import BlockKey
from kveik.kv.namespace import Namespace
from kveik.records import Listener, ignore
from kveik.store.base import MISS, BlockResult, Capabilities, Status, StoreStats, corrupt, failed, unsealed
from kveik.store.filesystem_files import (
    FULL,
    FileIdentity,
    FileTree,
    check_root,
    forget_pages,
    identify,
    read_into,
    read_opened,
    touch,
)
from kveik.store.filesystem_layout import (
    FORMAT_DIRECTORY,
    NAMESPACE_NAME,
    QUARANTINE_DIRECTORY,
    block_name,
    block_path,
    leaf_of,
    quarantine_name,
)
from kveik.store.filesystem_medium import Medium, medium_of
from kveik.store.filesystem_options import FilesystemOptions
from kveik.store.filesystem_quota import Allowance
from kveik.store.filesystem_space import FreeSpace, Usage, WriteGate
from kveik.store.filesystem_suspects import Suspects, Suspicion
from kveik.store.filesystem_sweep import HIGH_MARK, SweepReport, stored_keys, trim_quarantine
from kveik.store.filesystem_sweeper import SHARE_GOOD_TURNS, FolderSweeper

_TRANSIENT = frozenset({errno.ESTALE, errno.EIO, errno.EREMOTEIO})
_PLANTED = frozenset({errno.ENOTDIR, errno.ELOOP})


class FilesystemStore:
    """Blocks as files below ``options.root``.

    Raises :class:`~kveik.errors.StoreError` when the folder cannot be used at all. A thread
    sweeps the folder if this process holds its lease; it never holds up :meth:`close`.
    """

    def __init__(
        self,
        options: FilesystemOptions,
        *,
        name: str = "filesystem",
        listener: Listener = ignore,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._options = options
        self._name = name
        self._listener = listener
        self._clock = clock
        links = check_root(options.root)
        self._medium = options.medium or medium_of(options.root)
        self._tree = FileTree(options.root, fsync=options.fsync, links=links, fresh=self._medium.network)
        self._start = f"{options.root}/{FORMAT_DIRECTORY}/"
        self._suspects = Suspects(network=self._medium.network)
        self._usage = Usage()
        self._free = FreeSpace(str(options.root), clock)
        self._gate = WriteGate(f"{name}.writes", options.read_only_pause_s, listener, clock)
        self._trouble = ""
        self._closed = False
        alone, good_s = options.sweep_interval_s <= 0, SHARE_GOOD_TURNS * options.shared_turn_s
        self._allowance = Allowance(options.limit_bytes, clock, alone=alone, stale_s=good_s)
        self._sweeper = FolderSweeper(
            name, self._tree, options, self._usage, self._free, self._allowance, listener, clock
        )
        if options.sweep_interval_s > 0:
            self._sweeper.start()

    def __repr__(self) -> str:
        return f"FilesystemStore({str(self._options.root)!r}, {self._usage!r}, {self._gate!r}, {self._sweeper!r})"

    @property
    def name(self) -> str:
        """Short name used in metrics and messages."""
        return self._name

    @property
    def medium(self) -> Medium:
        """What the folder lies on."""
        return self._medium

    @property
    def capabilities(self) -> Capabilities:
        """Survives restarts, is seen by every node that mounts the folder, and evicts by itself."""
        return self._options.capabilities

    def describe(self, namespace: Namespace) -> None:
        """Keep the namespace's facts as ``namespace.json`` beside its blocks. Raises ``OSError``."""
        text = json.dumps(
            {"digest": namespace.digest.hex(), "label": namespace.label, "facts": dict(namespace.facts)}, indent=1
        )
        with self._tree.directory(namespace.digest.hex(), create=True) as directory:
            if identify(directory, NAMESPACE_NAME) is None:
                self._tree.publish(directory, "namespace", NAMESPACE_NAME, [text.encode()])

    def lookup(self, keys: Sequence[BlockKey], deadline: Deadline) -> list[bool]:
        """Whether each file is there and could hold a frame.

        On a network file system the first one of a group and rank that seems absent is asked for again, past what the
        client remembers. Keys come in the order of the prompt: a later one is of no use without it.
        """
        present = []
        absent: set[bytes] = set()
        for key in keys:
            found = not deadline.passed and self._present(key)
            if not found and self._medium.network and not deadline.passed and (chain := key[16:20]) not in absent:
                found = self._present_afresh(key)
                if not found:
                    absent.add(chain)
            present.append(found)
        return present

    def _present_afresh(self, key: BlockKey) -> bool:
        if self._closed:
            return False
        try:
            with self._tree.directory(*leaf_of(key)) as directory:
                found = identify(directory, block_name(key))
        except OSError:
            return False
        return found is not None and self._could_be(key, found)

    def _present(self, key: BlockKey) -> bool:
        if self._closed:
            return False
        try:
            info = os.lstat(self._start + block_path(key))
        except OSError:
            return False
        if not self._suspects.any:  # nearly always
            return info.st_size >= frame.HEADER_BYTES
        return self._could_be(key, FileIdentity.of(info))

    def _could_be(self, key: BlockKey, found: FileIdentity) -> bool:
        """Whether a file may hold its block, as far as its size and earlier looks tell."""
        return found.size >= frame.HEADER_BYTES and not self._suspects.has(key, found)

    def get(self, keys: Sequence[BlockKey], buffers: Sequence[memoryview], deadline: Deadline) -> list[BlockResult]:
        """Read each file straight into its buffer and verify it there."""
        return [self._get(key, buffer, deadline) for key, buffer in zip(keys, buffers, strict=True)]

    def _get(self, key: BlockKey, buffer: memoryview, deadline: Deadline) -> BlockResult:
        if self._closed:
            return failed("closed")
        if deadline.passed:
            return failed("timeout")
        result, identity = self._read_patiently(key, buffer)
        if result.status is Status.CORRUPT and identity is not None:
            # A network mount may show a file of another node half-way: only two equal verdicts count.
            self._forget_pages(key)
            result, identity = self._read_patiently(key, buffer)
        if result.status is Status.CORRUPT and identity is not None:
            return self._wrong(key, identity, result)
        if result.status is Status.HIT:
            self._suspects.clear(key)
        return result

    def _wrong(self, key: BlockKey, identity: FileIdentity, result: BlockResult) -> BlockResult:
        """Tell once of a wrong file, and take it away when that is certain."""
        suspicion = self._look(key, identity, result.reason)
        if suspicion is Suspicion.NEW:
            return result
        taken = suspicion is Suspicion.CERTAIN and self._quarantine(key, identity, result.reason)
        return result if taken and not self._medium.network else MISS

    def _forget_pages(self, key: BlockKey) -> None:
        with contextlib.suppress(OSError), self._tree.directory(*leaf_of(key)) as directory:
            forget_pages(directory, block_name(key))

    def _look(self, key: BlockKey, identity: FileIdentity, reason: str) -> Suspicion:
        return self._suspects.look(key, identity, reason, now_s=self._clock.monotonic(), wall_s=self._clock.wall())

    def _read_patiently(self, key: BlockKey, buffer: memoryview) -> tuple[BlockResult, FileIdentity | None]:
        try:
            return self._read(key, buffer)
        except OSError as error:
            if error.errno not in _TRANSIENT:
                return _read_failure(error), None
        try:
            return self._read(key, buffer)
        except OSError as error:
            return _read_failure(error), None

    def _read(self, key: BlockKey, buffer: memoryview) -> tuple[BlockResult, FileIdentity | None]:
        descriptor = self._tree.open_file(*leaf_of(key), block_name(key))
        if descriptor is None:
            return self._read_in_directory(key, buffer)
        identity, count = read_opened(descriptor, buffer)
        result = judge(key, buffer[:count], identity)
        if result.status is Status.HIT and self._is_due(identity):
            with contextlib.suppress(OSError), self._tree.directory(*leaf_of(key)) as directory:
                touch(directory, block_name(key))
        return result, identity

    def _read_in_directory(self, key: BlockKey, buffer: memoryview) -> tuple[BlockResult, FileIdentity | None]:
        name = block_name(key)
        with self._tree.directory(*leaf_of(key)) as directory:
            try:
                identity, count = read_into(directory, name, buffer)
            except OSError as error:
                planted = identify(directory, name) if error.errno == errno.ELOOP else None
                if planted is None:
                    raise
                return corrupt(FrameForeignError("a symbolic link stands in the file's place")), planted
            result = judge(key, buffer[:count], identity)
            if result.status is Status.HIT and self._is_due(identity):
                touch(directory, name)
            return result, identity

    def _is_due(self, found: FileIdentity) -> bool:
        """Whether a file that is used should say so by its time."""
        return self._clock.wall() - found.mtime_s > self._options.touch_after_s

    def _quarantine(self, key: BlockKey, identity: FileIdentity, reason: str) -> bool:
        """Move the wrong file out of the way; false when it is no longer the one that was judged."""
        name = block_name(key)
        try:
            with (
                self._tree.directory(*leaf_of(key)) as leaf,
                self._tree.directory(QUARANTINE_DIRECTORY, create=True) as quarantine,
            ):
                found = identify(leaf, name)
                if found is None or not found.same_file(identity):
                    return False
                number = self._tree.next_number()
                aside = quarantine_name(key, reason, self._clock.wall(), self._tree.writer, number)
                os.rename(name, aside, src_dir_fd=leaf, dst_dir_fd=quarantine)
            self._removed(identity.size)
            trim_quarantine(self._tree, self._options.quarantine_blocks, self._options.quarantine_bytes)
        except FileNotFoundError:
            return False
        except OSError as error:
            self._trouble = f"cannot quarantine {name}: {error.strerror}"
        return True

    def put(self, keys: Sequence[BlockKey], frames: Sequence[memoryview], deadline: Deadline) -> list[BlockResult]:
        """Write each frame to a temporary file and give it its name."""
        return [self._put(key, sealed, deadline) for key, sealed in zip(keys, frames, strict=True)]

    def _put(self, key: BlockKey, sealed: memoryview, deadline: Deadline) -> BlockResult:
        if self._closed:
            return failed("closed")
        if deadline.passed:
            return failed("timeout")
        try:
            size = frame.verify_header(sealed, key).frame_bytes
        except FrameError as error:
            return unsealed(error)
        if self._options.limit_bytes and size > self._options.limit_bytes:
            return failed("too_large", f"frame of {size} bytes, limit {self._options.limit_bytes}")
        try:
            return self._write_patiently(key, sealed[:size])
        except OSError as error:
            return self._refused(error)

    def _refused(self, error: OSError) -> BlockResult:
        if error.errno in FULL:
            self._gate.refused(error)
            self._sweeper.press(disk_full=error.errno != errno.EROFS)
            return failed("read_only", str(error))
        return failed("foreign" if error.errno in _PLANTED else "io_error", str(error))

    def _write_patiently(self, key: BlockKey, sealed: memoryview) -> BlockResult:
        try:
            return self._write(key, sealed)
        except OSError as error:
            if error.errno != errno.ESTALE:
                raise
        return self._write(key, sealed)  # a directory was removed and made again: its handle is another one now

    def _write(self, key: BlockKey, sealed: memoryview) -> BlockResult:
        there, wrong = self._find(key, len(sealed))
        if there:
            return BlockResult(Status.EXISTS)
        if not self._reserve_left(len(sealed)) or not self._allowance.take(len(sealed)):
            self._sweeper.press(wanted=self._allowance.room_for(len(sealed)))
            return failed("no_room", "until the next round of eviction")
        stored = False
        try:
            if not self._gate.permit():
                return failed("read_only")
            with self._tree.directory(*leaf_of(key), create=True) as directory:
                over = wrong is not None
                stored = self._tree.publish(directory, key.text, block_name(key), [sealed], over=over)
        finally:
            (self._allowance.wrote if stored else self._allowance.give_back)(len(sealed))
        self._gate.worked()
        if not stored:
            return BlockResult(Status.EXISTS)
        self._usage.change(int(wrong is None), len(sealed) - (wrong.size if wrong is not None else 0))
        self._suspects.clear(key)
        self._free.spent(len(sealed))
        if self._allowance.low or self._is_nearly_full():
            self._sweeper.press()
        return BlockResult(Status.STORED, len(sealed))

    def _is_nearly_full(self) -> bool:
        limit_bytes = self._options.limit_bytes
        return limit_bytes > 0 and self._usage.read()[1] >= limit_bytes * HIGH_MARK

    def _find(self, key: BlockKey, size: int) -> tuple[bool, FileIdentity | None]:
        """Whether the block is there; if not, the file in its place that looks wrong and may be written over.

        One that is wrong for certain, by its size, is quarantined.
        """
        name = block_name(key)
        try:
            with self._tree.directory(*leaf_of(key)) as directory:
                found = identify(directory, name)
                if found is None:
                    return False, None
                if self._suspects.has(key, found):
                    return False, found
                if found.regular and found.size == size:
                    if self._is_due(found):
                        touch(directory, name)
                    return True, None
        except FileNotFoundError:
            return False, None
        reason = "truncated" if found.regular else "foreign"
        if self._look(key, found, reason) is not Suspicion.CERTAIN:
            return False, found
        self._quarantine(key, found, reason)
        return False, None

    def _reserve_left(self, size: int) -> bool:
        reserve_bytes = self._options.reserve_bytes
        return not reserve_bytes or self._free.read() - size >= reserve_bytes

    def _removed(self, size: int) -> None:
        self._usage.change(-1, -size)
        self._allowance.removed(size)

    def delete(self, keys: Sequence[BlockKey]) -> list[BlockResult]:
        """Remove each file."""
        return [self._delete(key) for key in keys]

    def _delete(self, key: BlockKey) -> BlockResult:
        if self._closed:
            return failed("closed")
        name = block_name(key)
        try:
            with self._tree.directory(*leaf_of(key)) as directory:
                found = identify(directory, name)
                os.unlink(name, dir_fd=directory)
        except FileNotFoundError:
            return MISS
        except OSError as error:
            return failed("io_error", str(error))
        size = found.size if found is not None else 0
        self._removed(size)
        return BlockResult(Status.DELETED, size)

    def keys(self, namespace: bytes) -> Iterator[Sequence[BlockKey]]:
        """The blocks of one namespace, or all (empty digest), one directory's at a time. Raises ``StoreError``."""
        try:
            yield from stored_keys(self._tree, namespace.hex())
        except OSError as error:
            raise StoreError(f"{self._name} tier: cannot list {self._options.root}: {error}") from error

    def stats(self) -> StoreStats:
        """Sizes as last counted, and changed by this process since."""
        blocks, size = self._usage.read()
        on = f"on {self._medium}" if self._medium.network else ""
        notes = (str(self._options.root), *filter(None, [self._sweeper.state, self._trouble, on]))
        return StoreStats(blocks, size, self._options.limit_bytes, self._gate.read_only, notes)

    def sweep(self) -> SweepReport | None:
        """One round of sweeping now; None when closed or when another process holds the lease. Raises ``OSError``."""
        return self._sweeper.round()

    def close(self) -> None:
        """Stop sweeping and give up the lease, without waiting for a round that is under way."""
        self._closed = True
        self._sweeper.close()


def judge(key: BlockKey, present: memoryview, identity: FileIdentity) -> BlockResult:
    """What the bytes at the beginning of a file, as many as the buffer could take, are worth."""
    if not identity.regular:
        return corrupt(FrameForeignError("no regular file"))
    if identity.size < frame.HEADER_BYTES:
        return _truncated(f"a file of {identity.size} bytes holds no frame")
    if len(present) < frame.HEADER_BYTES:
        return failed("too_large", "the buffer does not even hold a header page")
    if bytes(present[: len(frame.MAGIC)]) != frame.MAGIC:
        return corrupt(FrameForeignError("no frame of Kveik's"))
    try:
        header = frame.read_header(present)
        if header.key != key:
            return corrupt(FrameForeignError(f"frame of {header.key}"))
        if header.frame_bytes != identity.size:
            return _truncated(f"a file of {identity.size} bytes, the header says {header.frame_bytes}")
        if len(present) < header.frame_bytes:
            return failed("too_large", f"frame of {header.frame_bytes} bytes, buffer of {len(present)}")
        frame.verify(present, key)
    except FrameError as error:
        return corrupt(error)
    return BlockResult(Status.HIT, header.frame_bytes)


def _truncated(detail: str) -> BlockResult:
    return BlockResult(Status.CORRUPT, reason="truncated", detail=detail)


def _read_failure(error: OSError) -> BlockResult:
    if isinstance(error, FileNotFoundError):
        return MISS
    return failed("foreign" if error.errno in _PLANTED else "io_error", str(error))

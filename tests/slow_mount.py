"""A file system of the kernel's whose server tests control: slow, hung, or answering with errors. Linux, as root.

``python -m tests.slow_mount SOURCE TARGET CONTROL`` mounts the folder ``SOURCE`` at ``TARGET`` through FUSE. What
reads or writes there makes real system calls that a server answers, as with NFS: a hung server holds callers so that
not even a kill frees them, and clients keep names and sizes for as long as the server allows. ``CONTROL`` is a JSON
file that may be rewritten at any time: see :class:`Control`. Format of the messages: Linux
``include/uapi/linux/fuse.h``, version 7.31.
"""

import contextlib
import ctypes
import errno
import itertools
import json
import os
import stat
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

_MAX_WRITE = 1 << 20
_LIBC = ctypes.CDLL(None, use_errno=True)
_DETACH = 2
_IN = struct.Struct("<IIQQIIIHH")
_OUT = struct.Struct("<IiQ")
_ATTR = struct.Struct("<6Q10I")
_OPERATIONS = {
    1: "lookup", 2: "forget", 3: "getattr", 4: "setattr", 9: "mkdir", 10: "unlink", 11: "rmdir", 12: "rename",
    13: "link", 14: "open", 15: "read", 16: "write", 17: "statfs", 18: "release", 20: "fsync", 25: "flush", 26: "init",
    27: "opendir", 28: "readdir", 29: "release", 30: "fsync", 34: "access", 35: "create", 36: "forget", 38: "forget",
    42: "forget", 45: "rename2",
}  # fmt: skip


@dataclass(frozen=True)
class Control:
    """How the server behaves, by operation: ``delay_s``, ``errors`` (numbers), and ``hang``: those it never answers."""

    delay_s: dict[str, float] = field(default_factory=dict)
    errors: dict[str, int] = field(default_factory=dict)
    hang: tuple[str, ...] = ()
    names_s: float = 0.0  # how long clients may keep names, absent ones too, and sizes


class Server:
    """Answers one mount's requests, on several threads."""

    def __init__(self, source: str, target: str, control: Path) -> None:
        self._source = source
        self._control_file = control
        self._control = Control()
        self._control_read = 0
        self._paths = {1: ""}
        self._nodes = {"": 1}
        self._numbers = itertools.count(2)
        self._lock = threading.Lock()
        self._device = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
        options = f"fd={self._device},rootmode=40000,user_id=0,group_id=0,allow_other"
        if _LIBC.mount(b"slow", target.encode(), b"fuse.slow", 6, options.encode()):
            raise OSError(ctypes.get_errno(), "cannot mount")

    def serve(self, threads: int = 16) -> None:
        """Answer until the mount is gone."""
        workers = [threading.Thread(target=self._work, daemon=True) for _ in range(threads)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()

    def _work(self) -> None:
        while True:
            try:
                message = os.read(self._device, _MAX_WRITE + (64 << 10))
            except OSError as error:
                if error.errno in (errno.EINTR, errno.ENOENT, errno.EAGAIN):
                    continue
                return  # unmounted
            _, opcode, unique, node, *_ = _IN.unpack_from(message)
            name = _OPERATIONS.get(opcode, "")
            if name == "forget":
                continue
            try:
                self._misbehave(name)
                handle = getattr(self, f"_{name}", None)
                if handle is None:
                    raise OSError(errno.ENOSYS, name)
                answer = handle(node, memoryview(message)[_IN.size :])
                code = 0
            except OSError as error:
                answer, code = b"", -(error.errno or errno.EIO)
            with contextlib.suppress(OSError):  # interrupted, or unmounted
                os.write(self._device, _OUT.pack(_OUT.size + len(answer), code, unique) + answer)

    def _misbehave(self, name: str) -> None:
        while name in self._now().hang:
            time.sleep(0.01)
        time.sleep(self._control.delay_s.get(name, 0.0))
        if name in self._control.errors:
            raise OSError(self._control.errors[name], name)

    def _now(self) -> Control:
        with contextlib.suppress(OSError, ValueError):
            changed = self._control_file.stat().st_mtime_ns
            if changed != self._control_read:
                self._control = Control(**json.loads(self._control_file.read_text()))
                self._control_read = changed
        return self._control

    # -- nodes ------------------------------------------------------------------------------

    def _real(self, node: int, name: str = "") -> str:
        with self._lock:
            if node not in self._paths:
                raise OSError(errno.ESTALE, "no such node")
            return (
                os.path.join(self._source, self._paths[node], name) if name else f"{self._source}/{self._paths[node]}"
            )

    def _relative(self, path: str) -> str:
        return os.path.relpath(path, self._source) if path.rstrip("/") != self._source else ""

    def _node(self, path: str) -> int:
        relative = self._relative(path)
        with self._lock:
            if relative not in self._nodes:
                self._nodes[relative] = next(self._numbers)
                self._paths[self._nodes[relative]] = relative
            return self._nodes[relative]

    def _forget(self, path: str) -> None:
        with self._lock:
            self._nodes.pop(self._relative(path), None)  # the node keeps its path: opened files go on

    def _entry(self, path: str) -> bytes:
        info = os.lstat(path)
        kept = _seconds(self._control.names_s)
        return struct.pack("<4Q2I", self._node(path), 0, kept[0], kept[0], kept[1], kept[1]) + _attributes(info)

    # -- operations -------------------------------------------------------------------------

    def _init(self, _: int, body: memoryview) -> bytes:
        readahead = struct.unpack_from("<I", body, 8)[0]
        flags = 1 | 1 << 5 | 1 << 18 | 1 << 22  # reads in parallel, large writes, parallel lookups, many pages
        return struct.pack("<IIIIHHIIHHI28x", 7, 31, readahead, flags, 64, 48, _MAX_WRITE, 1, _MAX_WRITE >> 12, 0, 0)

    def _lookup(self, node: int, body: memoryview) -> bytes:
        try:
            return self._entry(self._real(node, _text(body)))
        except FileNotFoundError:
            kept = _seconds(self._control.names_s)
            if kept == (0, 0):
                raise
            return struct.pack("<4Q2I", 0, 0, kept[0], 0, kept[1], 0) + bytes(_ATTR.size)

    def _getattr(self, node: int, _: memoryview) -> bytes:
        kept = _seconds(self._control.names_s)
        return struct.pack("<QII", *kept, 0) + _attributes(os.lstat(self._real(node)))

    def _setattr(self, node: int, body: memoryview) -> bytes:
        valid, _, _, size, _, atime, mtime, _, ansec, mnsec, _, mode, *_ = struct.unpack_from("<II6Q8I", body)
        path = self._real(node)
        if valid & 1:
            os.chmod(path, stat.S_IMODE(mode))
        if valid & 8:
            os.truncate(path, size)
        if valid & 0x1B0:
            now, info = time.time_ns(), os.lstat(path)
            times = [info.st_atime_ns, info.st_mtime_ns]
            if valid & 0x90:
                times[0] = now if valid & 0x80 else atime * 10**9 + ansec
            if valid & 0x120:
                times[1] = now if valid & 0x100 else mtime * 10**9 + mnsec
            os.utime(path, ns=(times[0], times[1]), follow_symlinks=False)
        return self._getattr(node, body)

    def _mkdir(self, node: int, body: memoryview) -> bytes:
        path = self._real(node, _text(body[8:]))
        os.mkdir(path, struct.unpack_from("<I", body)[0] & 0o7777)
        return self._entry(path)

    def _unlink(self, node: int, body: memoryview) -> bytes:
        path = self._real(node, _text(body))
        os.unlink(path)
        self._forget(path)
        return b""

    def _rmdir(self, node: int, body: memoryview) -> bytes:
        path = self._real(node, _text(body))
        os.rmdir(path)
        self._forget(path)
        return b""

    def _rename(self, node: int, body: memoryview, head: int = 8) -> bytes:
        old, new = bytes(body[head:]).split(b"\0")[:2]
        source = self._real(node, old.decode())
        target = self._real(struct.unpack_from("<Q", body)[0], new.decode())
        os.rename(source, target)
        with self._lock:
            moved = self._nodes.pop(self._relative(source), 0)
            if moved:
                self._nodes[self._relative(target)] = moved
                self._paths[moved] = self._relative(target)
        return b""

    def _rename2(self, node: int, body: memoryview) -> bytes:
        return self._rename(node, body, 16)

    def _link(self, node: int, body: memoryview) -> bytes:
        path = self._real(node, _text(body[8:]))
        os.link(self._real(struct.unpack_from("<Q", body)[0]), path)
        return self._entry(path)

    def _open(self, node: int, body: memoryview) -> bytes:
        flags = struct.unpack_from("<I", body)[0] & ~(os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW)
        return struct.pack("<QII", os.open(self._real(node), flags), 0, 0)

    def _create(self, node: int, body: memoryview) -> bytes:
        flags, mode = struct.unpack_from("<II", body)
        path = self._real(node, _text(body[16:]))
        descriptor = os.open(path, flags & ~os.O_NOFOLLOW, mode & 0o7777)
        return self._entry(path) + struct.pack("<QII", descriptor, 0, 0)

    def _read(self, _: int, body: memoryview) -> bytes:
        handle, offset, size = struct.unpack_from("<QQI", body)
        return os.pread(handle, size, offset)

    def _write(self, _: int, body: memoryview) -> bytes:
        handle, offset, size = struct.unpack_from("<QQI", body)
        return struct.pack("<II", os.pwrite(handle, body[40 : 40 + size], offset), 0)

    def _release(self, _: int, body: memoryview) -> bytes:
        handle = struct.unpack_from("<Q", body)[0]
        if handle:
            os.close(handle)
        return b""

    def _flush(self, _: int, body: memoryview) -> bytes:
        return b""

    def _fsync(self, _: int, body: memoryview) -> bytes:
        return b""

    def _access(self, _: int, body: memoryview) -> bytes:
        return b""

    def _opendir(self, node: int, _: memoryview) -> bytes:
        self._real(node)
        return struct.pack("<QII", 0, 0, 0)

    def _readdir(self, node: int, body: memoryview) -> bytes:
        _, offset, size = struct.unpack_from("<QQI", body)
        answer = b""
        names = sorted(os.listdir(self._real(node)))
        for position, name in enumerate(names[offset:], start=offset + 1):
            raw = name.encode()
            one = struct.pack("<QQII", position + 1, position, len(raw), 0) + raw
            one += bytes(-len(one) % 8)
            if len(answer) + len(one) > size:
                break
            answer += one
        return answer

    def _statfs(self, _: int, body: memoryview) -> bytes:
        found = os.statvfs(self._source)
        return struct.pack(
            "<5Q4I24x", found.f_blocks, found.f_bfree, found.f_bavail, found.f_files, found.f_ffree, found.f_bsize,
            found.f_namemax, found.f_frsize, 0,
        )  # fmt: skip


def _text(body: memoryview) -> str:
    return bytes(body).split(b"\0")[0].decode()


def _seconds(value: float) -> tuple[int, int]:
    return int(value), int(value % 1 * 1e9)


def _attributes(info: os.stat_result) -> bytes:
    times = (info.st_atime_ns, info.st_mtime_ns, info.st_ctime_ns)
    whole, rest = [value // 10**9 for value in times], [value % 10**9 for value in times]
    return _ATTR.pack(
        info.st_ino, info.st_size, info.st_blocks, *whole, *rest, info.st_mode, info.st_nlink, info.st_uid, info.st_gid,
        0, 4096, 0,
    )  # fmt: skip


class SlowMount:
    """A mount of ``source`` at ``target`` and the process that serves it."""

    def __init__(self, source: Path, target: Path) -> None:
        self.target = target
        self.source = source
        self.control = Control()
        self._control_file = target.parent / f"{target.name}.control"
        target.mkdir(exist_ok=True)
        self.set()
        command = [sys.executable, "-m", "tests.slow_mount", str(source), str(target), str(self._control_file)]
        root = Path(__file__).resolve().parents[1]
        self._process = subprocess.Popen(command, cwd=root, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        self.mounted = self._process.stdout.readline().strip() == "mounted"

    def set(self, **changes: object) -> None:
        """Let the server behave differently from now on; what is not named goes back to normal."""
        self.control = replace(Control(), **changes)  # type: ignore[arg-type]
        aside = self._control_file.with_suffix(".new")
        aside.write_text(json.dumps(asdict(self.control)))
        aside.replace(self._control_file)

    def close(self) -> None:
        """End the server, which frees all that hang, and take the mount away."""
        self._process.kill()
        self._process.wait()
        _LIBC.umount2(str(self.target).encode(), _DETACH)
        for pipe in (self._process.stdout, self._process.stderr):
            if pipe is not None:
                pipe.close()


@contextmanager
def slow_mounts(folder: Path) -> Iterator[Callable[[str], SlowMount | None]]:
    """Makes mounts of ``folder/shared`` by name, as nodes have them; None where that may not be done here."""
    source = folder / "shared"
    source.mkdir()
    made: list[SlowMount] = []

    def mount(name: str) -> SlowMount | None:
        made.append(SlowMount(source, folder / name))
        return made[-1] if made[-1].mounted else None

    try:
        yield mount
    finally:
        for one in made:
            one.close()


if __name__ == "__main__":
    server = Server(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
    print("mounted", flush=True)
    server.serve()

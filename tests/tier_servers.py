"""Each kind of store that nodes can share, with real servers, behind one set of words: kill, start, pause, resume."""

import contextlib
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from kveik.config import StoreSettings
from tests.mooncake import running_mooncake
from tests.redis_server import running_redis
from tests.yuanrong import Worker, running_cluster

MIB = 1 << 20


class TierServer(ABC):
    """One running store. ``agent`` and ``stores`` are what an agent's settings say of it.

    ``survives``: whether its blocks are there after :meth:`kill` and :meth:`start`.
    """

    survives = False
    agent: Mapping[str, str] = {}
    stores = StoreSettings()

    @abstractmethod
    def kill(self) -> None:
        """kill -9 of what answers for the store: its master, its only server."""

    @abstractmethod
    def start(self) -> None:
        """Start again what was killed."""

    @abstractmethod
    def pause(self) -> None:
        """SIGSTOP of what holds the blocks."""

    @abstractmethod
    def resume(self) -> None:
        """SIGCONT of it."""


class Folder(TierServer):
    """A folder; nobody answers for it, so nothing can be killed."""

    survives = True

    def __init__(self, folder: Path) -> None:
        self.root = folder / "blocks"
        self.agent = {"filesystem": str(self.root)}

    def kill(self) -> None:
        raise NotImplementedError("a folder has no server")

    start = pause = resume = kill


class Mooncake(TierServer):
    """A master, and one process that lends memory. Killed is the master; paused who lends."""

    def __init__(self, folder: Path, ending: contextlib.ExitStack) -> None:
        self._mooncake = ending.enter_context(running_mooncake(folder, lender_bytes=512 * MIB))
        self.stores = StoreSettings(mooncake=replace(self._mooncake.settings, prefix="engines"))

    def kill(self) -> None:
        self._mooncake.master.kill()

    def start(self) -> None:
        self._mooncake.start()

    def pause(self) -> None:
        self._mooncake.lenders[0].pause()

    def resume(self) -> None:
        self._mooncake.lenders[0].resume()


class Yuanrong(TierServer):
    """etcd and one worker, which is what is killed and paused."""

    def __init__(self, _: Path, ending: contextlib.ExitStack) -> None:
        cluster = ending.enter_context(running_cluster())
        # Given up later than any test stops it: it would end by itself when it goes on.
        self._worker: Worker = cluster.worker(node_timeout_s="120", node_dead_timeout_s="300")
        self.stores = self._worker.stores

    def kill(self) -> None:
        self._worker.kill()

    def start(self) -> None:
        self._worker.start()

    def pause(self) -> None:
        self._worker.pause()

    def resume(self) -> None:
        self._worker.resume()


class Redis(TierServer):
    """One server without any file."""

    def __init__(self, folder: Path, ending: contextlib.ExitStack) -> None:
        self._server = ending.enter_context(running_redis(folder))
        self.stores = StoreSettings(redis=self._server.settings(connect_s=2.0))

    def kill(self) -> None:
        self._server.kill()

    def start(self) -> None:
        self._server.start()

    def pause(self) -> None:
        self._server.pause()

    def resume(self) -> None:
        self._server.resume()


KINDS: Mapping[str, Callable[[Path, contextlib.ExitStack], TierServer]] = {
    "filesystem": lambda folder, _: Folder(folder),
    "mooncake": Mooncake,
    "yuanrong": Yuanrong,
    "redis": Redis,
}


@contextmanager
def running_tier_server(kind: str) -> Iterator[TierServer]:
    """The store of that kind, ready; skips, with the reason, where it is not installed."""
    with contextlib.ExitStack() as ending:
        folder = Path(
            ending.enter_context(tempfile.TemporaryDirectory(prefix="kveik-tier-", ignore_cleanup_errors=True))
        )
        yield KINDS[kind](folder, ending)

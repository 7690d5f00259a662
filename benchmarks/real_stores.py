"""Real stores on this machine for benchmarks: their servers, how an agent uses them, how their own clients do.

Servers are started as ``kveik store`` starts them, on loopback, in memory of their own processes.
"""

import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from kveik.config import StoreSettings
from kveik.config_stores import RedisSettings
from kveik.engine.process import free_port
from kveik.errors import ConfigError
from kveik.kv.keys import BlockKey
from kveik.launch.mooncake_trial import MooncakeTrial
from kveik.launch.store_processes import StoreProcess, StoreProcesses, listening, prove
from kveik.launch.yuanrong_trial import YuanrongTrial, etcd_program
from kveik.store.filesystem_layout import FORMAT_DIRECTORY, block_name, leaf_of
from kveik.store.key_text import KeyTexts
from kveik.store.mooncake_library import plan_of
from kveik.store.mooncake_tier import open_tier as open_mooncake
from kveik.store.yuanrong_client import YuanrongOptions, require_package

Say = Callable[[str], None]
NAMES = ("filesystem", "mooncake", "yuanrong", "redis")
_PROOF_S = 60.0
#: What each store's own client does.
OWN_WORDS = {
    "filesystem": "the same files into one buffer, by one thread with readinto",
    "mooncake": "batch_get_into of all keys at once into registered memory, over TCP from another process's segment",
    "yuanrong": "get_read_only_buffers of all keys at once from the local worker, and a copy of each into a buffer",
    "redis": "redis-py (with hiredis) MGET of all keys at once, without a copy of the values",
}


@dataclass(frozen=True, kw_only=True)
class RealStore:
    """One store that runs. ``own`` and ``options`` tell :mod:`benchmarks.own_clients` how to read from it.

    ``agent`` and ``stores`` are settings of an agent that has it as its only tier; ``address`` is HOST:PORT,
    ``second`` a further one.
    """

    name: str
    own: str
    options: Mapping[str, object] = field(default_factory=dict)
    agent: Mapping[str, str] = field(default_factory=dict)
    stores: StoreSettings = field(default_factory=StoreSettings)
    folder: Path = Path()
    prefix: str = ""
    address: str = ""
    second: str = ""

    def own_names(self, keys: Sequence[BlockKey]) -> list[str]:
        """What the blocks are called in the store itself."""
        if self.own == "files":
            root = self.folder / FORMAT_DIRECTORY
            return [str(root.joinpath(*leaf_of(key), block_name(key))) for key in keys]
        texts = KeyTexts(self.prefix) if self.prefix else KeyTexts()
        return [texts.of(key) for key in keys]


@contextmanager
def running_store(name: str, folder: Path, memory_bytes: int, say: Say) -> Iterator[RealStore]:
    """The store of that name, ready; ``folder`` has a short path. Raises :class:`ConfigError` if it is not here."""
    starts = {"filesystem": _filesystem, "mooncake": _mooncake, "yuanrong": _yuanrong, "redis": _redis}
    folder.mkdir(parents=True, exist_ok=True)
    with StoreProcesses(folder, lambda text: say(text[:100])) as processes:
        yield starts[name](folder, memory_bytes, processes)


def _filesystem(folder: Path, _: int, __: StoreProcesses) -> RealStore:
    root = folder / "blocks"
    return RealStore(
        name="filesystem",
        own="files",
        agent={"filesystem": str(root)},
        folder=root,
    )


def _mooncake(_: Path, memory_bytes: int, processes: StoreProcesses) -> RealStore:
    trial = MooncakeTrial(
        memory_bytes,
        metadata=True,
        master_port=free_port(),
        http_port=free_port(),
        metadata_port=free_port(),
        lender_port=free_port(),
    )
    for process in trial.processes():
        processes.start(process)
    settings = replace(trial.settings, prefix="bench")
    _prove_mooncake(settings)
    plan = plan_of(settings, settings.host, os.environ)
    return RealStore(
        name="mooncake",
        own="mooncake",
        options={"setup": list(plan.setup), "environment": dict(plan.environment)},
        stores=StoreSettings(mooncake=settings),
        prefix=settings.prefix,
        address=settings.master,
        second=settings.metadata,
    )


def _prove_mooncake(settings: object) -> None:
    store = open_mooncake(settings, None, deadline_s=20.0)  # type: ignore[arg-type]
    try:
        prove(store, _PROOF_S)
    finally:
        store.close()


def _yuanrong(folder: Path, memory_bytes: int, processes: StoreProcesses) -> RealStore:
    trial = YuanrongTrial(folder, free_port(), free_port(), free_port(), memory_bytes)
    package = require_package()
    for process in trial.processes(package, etcd_program(), os.environ):
        processes.start(process)
    options = YuanrongOptions.from_settings(trial.settings)
    return RealStore(
        name="yuanrong",
        own="yuanrong",
        options={"host": options.host, "port": options.port},
        stores=StoreSettings(yuanrong=trial.settings),
        prefix=options.prefix,
        address=trial.worker,
    )


def _redis(folder: Path, memory_bytes: int, processes: StoreProcesses) -> RealStore:
    program = shutil.which("redis-server") or shutil.which("valkey-server")
    if program is None:
        raise ConfigError("there is no redis-server here: apt-get install redis-server")
    port = free_port()
    words = ["--port", str(port), "--bind", "127.0.0.1", "--dir", str(folder), "--save", "", "--appendonly", "no"]
    words += ["--maxmemory", str(memory_bytes)]
    processes.start(StoreProcess("redis", [program, *words], listening(port)))
    address = f"127.0.0.1:{port}"
    return RealStore(
        name="redis",
        own="redis",
        options={"port": port},
        stores=StoreSettings(redis=RedisSettings(address=address)),
        address=address,
    )

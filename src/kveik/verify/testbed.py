"""An agent or two, and two engines of our own on this machine, for proofs and demonstrations.

Everything lies in one temporary folder and ends with the context manager, also on an exception or
Ctrl-C; if this process is killed, the tethers end the rest.
"""

import contextlib
import functools
import json
import os
import shutil
import signal
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from kveik.engine.launch import Engine, EngineSpec, check_engine_python
from kveik.engine.process import ServerProcess, free_port
from kveik.errors import ConfigError
from kveik.verify.bed_node import BedNode
from kveik.verify.proof import Subject

DTYPE_BYTES = {"float32": 4, "float": 4, "bfloat16": 2, "float16": 2, "half": 2}
_SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - a tmpfs is what is wanted
#: A late lookup would be a miss, a late save dropped, a slow load not made. On a busy machine that is right for
#: serving, but here a leg that computes instead of hitting shows nothing.
PATIENT: Mapping[str, Any] = {
    "lookup_deadline_s": 5.0,
    "load_deadline_s": 60.0,
    "save_deadline_s": 60.0,
    "load_choice": "always",
}
#: For the same reason. A start takes half a minute where nobody else computes.
TIER_DEADLINE_S = 30.0
START_S = 900.0
_ARENA_PREFIX = "kveik-testbed-"


@dataclass(frozen=True, kw_only=True)
class TestbedSpec:
    """What to start.

    ``engine_tokens`` is what one engine's own KV cache must hold, ``shared_tokens`` what the shared
    cache must. ``connector`` holds further settings of the ``[connector]`` table. With two ``nodes`` each engine
    has an agent of its own, which share nothing but the stores in ``store_config``, or else a folder.
    """

    __test__ = False  # the name makes pytest curious

    model: Path
    engine_python: str
    agent_python: str
    dtype: str = "float32"
    max_model_tokens: int = 4096
    engine_tokens: int = 16384
    shared_tokens: int = 32768
    filesystem: bool = True
    nodes: int = 1
    store_config: Path | None = None
    connector: Mapping[str, Any] = field(default_factory=dict)
    extra_arguments: Sequence[str] = ()


class Testbed:
    """The running agent and engines; use as a context manager."""

    __test__ = False

    def __init__(self, spec: TestbedSpec, say: Callable[[str], None]) -> None:
        self.spec = spec
        self._say = say
        self._stack = contextlib.ExitStack()
        self.nodes: list[BedNode] = []
        self.engines: list[Engine] = []

    def __enter__(self) -> Self:
        check_engine_python(self.spec.engine_python)
        config = read_model_config(self.spec.model)
        with contextlib.ExitStack() as stack:
            _end_cleanly_on_sigterm(stack)
            folder = Path(tempfile.mkdtemp(prefix="kveik-testbed-"))
            stack.callback(shutil.rmtree, folder, ignore_errors=True)
            self._folder = folder
            try:
                self._start(stack, folder, kv_bytes_per_token(config, self.spec.dtype))
            except Exception:
                self._keep_logs(folder)
                raise
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None and issubclass(kind, Exception):
            self._keep_logs(self._folder)
        self._stack.close()

    def subjects(self) -> tuple[Subject, Subject]:
        """Both engines, as proofs and demonstrations want them."""
        first, second = (
            Subject(
                engine.spec.name,
                engine.client,
                engine.model_name,
                functools.partial(self.restart, engine),
                self._node_of(engine).wait_written if len(self.nodes) > 1 else None,
            )
            for engine in self.engines
        )
        return first, second

    @property
    def agent(self) -> ServerProcess:
        """The first node's agent."""
        return self.nodes[0].agent

    def _node_of(self, engine: Engine) -> BedNode:
        return self.nodes[self.engines.index(engine) % len(self.nodes)]

    def restart(self, engine: Engine) -> None:
        """kill -9 of the engine's whole process group, and the same engine again.

        On a node of its own its agent is killed too and loses its arena: only the stores have the blocks then.
        """
        if len(self.nodes) > 1:
            self._node_of(engine).kill_and_restart()
            self._say(f"{self._node_of(engine).name} killed with -9, started again with an empty arena")
        seconds = engine.kill_and_restart(START_S)
        self._say(f"{engine.spec.name} killed with -9 and serving again after {seconds:.0f} s")

    def _start(self, stack: contextlib.ExitStack, folder: Path, token_bytes: int) -> None:
        for name in ("agent", "agent-b")[: self.spec.nodes]:
            self.nodes.append(self._start_node(stack, name, folder, token_bytes))
            self._say(f"{name} is ready")
        for number, name in enumerate(("engine-a", "engine-b")):
            socket = self.nodes[number % len(self.nodes)].socket
            engine = Engine(self._engine_spec(name, number, socket, token_bytes), os.environ, folder)
            self.engines.append(engine)
            # Nothing of these engines is worth an orderly end, which takes seconds.
            stack.callback(engine.process.kill)
            engine.start()
        for engine in self.engines:
            self._say(f"{engine.spec.name} is starting ({self.spec.model.name}, {self.spec.dtype})")
            seconds = engine.wait_ready(START_S, self._every_ten_seconds(engine.spec.name))
            self._say(f"{engine.spec.name} serves after {seconds:.0f} s")

    def _start_node(self, stack: contextlib.ExitStack, name: str, folder: Path, token_bytes: int) -> BedNode:
        # Slabs and frame headers need room beside the payloads.
        arena_bytes = (256 << 20) + int(1.25 * self.spec.shared_tokens * token_bytes)
        arena = _arena_path(folder, arena_bytes, name)
        stack.callback(arena.unlink, missing_ok=True)
        settings: dict[str, Any] = {
            "socket": str(folder / f"{name}.sock"),
            "arena": str(arena),
            "arena_bytes": arena_bytes,
            "tier_deadline_s": TIER_DEADLINE_S,
        }
        config = self.spec.store_config
        if self.spec.filesystem and config is None:
            settings["filesystem"] = str(folder / "blocks")
        node = BedNode(name, self.spec.agent_python, settings, folder, config=config)
        stack.callback(node.stop)
        if config is not None or self.spec.nodes > 1:
            node.wait_tiers()
        return node

    def _engine_spec(self, name: str, number: int, socket: str, token_bytes: int) -> EngineSpec:
        return EngineSpec(
            name=name,
            python=self.spec.engine_python,
            model=self.spec.model,
            port=free_port(),
            dtype=self.spec.dtype,
            max_model_tokens=self.spec.max_model_tokens,
            kv_cache_bytes=max(self.spec.engine_tokens, self.spec.max_model_tokens + 1024) * token_bytes,
            cores=core_of(number, sorted(os.sched_getaffinity(0))),
            connector={"socket": socket, **PATIENT, **self.spec.connector},
            extra_arguments=self.spec.extra_arguments,
        )

    def _every_ten_seconds(self, name: str) -> Callable[[float], None]:
        said = 0

        def progress(waited_s: float) -> None:
            nonlocal said
            if waited_s >= said + 10:
                said = int(waited_s) // 10 * 10
                self._say(f"{name} is still starting, {said} s")

        return progress

    def _keep_logs(self, folder: Path) -> None:
        """After trouble the logs are worth more than a clean temporary folder."""
        logs = list(folder.glob("*.log"))
        if logs:
            kept = Path(tempfile.mkdtemp(prefix="kveik-logs-"))
            for log in logs:
                shutil.copy(log, kept)
            self._say(f"the logs are kept in {kept}")


def _end_cleanly_on_sigterm(stack: contextlib.ExitStack) -> None:
    """While the testbed runs, SIGTERM ends the program as an exception does: with clean-up."""
    if threading.current_thread() is threading.main_thread():
        before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
        stack.callback(signal.signal, signal.SIGTERM, before)


def core_of(number: int, cores: Sequence[int]) -> str:
    """The one core that engine ``number`` computes on.

    One core each, always the same: the number of threads changes rounding, and two engines that
    fight for a core are slower by an order of magnitude.
    """
    return str(cores[number % len(cores)])


def _arena_path(folder: Path, arena_bytes: int, name: str = "agent") -> Path:
    """Where the arena's file goes: shared memory where it is large enough, else the folder.

    Containers often have 64 MiB of shared memory. Arenas that a killed testbed left are removed.
    """
    for stale in _SHARED_MEMORY.glob(f"{_ARENA_PREFIX}*"):
        pid = stale.name.removeprefix(_ARENA_PREFIX).partition(".")[0]
        if pid.isdigit() and not Path(f"/proc/{pid}").exists():
            with contextlib.suppress(OSError):
                stale.unlink()
    if _SHARED_MEMORY.is_dir() and shutil.disk_usage(_SHARED_MEMORY).free > arena_bytes + (64 << 20):
        return _SHARED_MEMORY / f"{_ARENA_PREFIX}{os.getpid()}.{name}.arena"
    return folder / f"{name}.arena"


def read_model_config(model: Path) -> Mapping[str, Any]:
    """The text part of a model's ``config.json``. Raises :class:`~kveik.errors.ConfigError`."""
    path = model / "config.json"
    try:
        config = json.loads(path.read_text(encoding="utf8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"cannot read the model's {path}: {error}") from error
    text = config.get("text_config", config)
    return text if isinstance(text, dict) else config


def kv_bytes_per_token(config: Mapping[str, Any], dtype: str) -> int:
    """An upper bound of the KV bytes of one token: as if every layer kept it. Raises ConfigError."""
    if dtype not in DTYPE_BYTES:
        raise ConfigError(f"dtype is {dtype!r}, expected one of {', '.join(DTYPE_BYTES)}")
    try:
        heads = int(config.get("num_key_value_heads") or config["num_attention_heads"])
        head = int(config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"])
        return 2 * int(config["num_hidden_layers"]) * heads * head * DTYPE_BYTES[dtype]
    except (KeyError, TypeError) as error:
        raise ConfigError(f"the model's config.json does not say its {error}") from error

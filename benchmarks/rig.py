"""Engines with Kveik, with LMCache and with neither, on one core, and the servers behind them.

All engines of a benchmark compute on the same core and take turns, so they meet the same machine.
"""

import contextlib
import json
import os
import shutil
import signal
import socket
import sys
import tempfile
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from kveik.engine.launch import Engine, EngineSpec, start_agent
from kveik.engine.process import ServerProcess, free_port

SHARED_MEMORY = Path("/dev/shm")
START_TIMEOUT_S = 600.0
LMCACHE_MODULE = "lmcache.integration.vllm.lmcache_mp_connector"


@dataclass(frozen=True, kw_only=True)
class RigSpec:
    """What all engines of one benchmark share. ``shared_gib`` is the memory that each shared cache gets."""

    model: Path
    engine_python: str
    dtype: str
    core: int
    max_model_tokens: int = 8192
    engine_bytes: int = 500 << 20
    shared_gib: int = 1
    connector: Mapping[str, Any] = field(default_factory=dict)

    @property
    def connector_settings(self) -> dict[str, Any]:
        """Settings of Kveik's connector; a busy machine shall make a hit slow here, not make it a miss."""
        return {"lookup_deadline_s": 2.0, **self.connector}


class Rig:
    """Starts and certainly ends the servers of a benchmark. A context manager."""

    def __init__(self, spec: RigSpec, say: Callable[[str], None]) -> None:
        self.spec = spec
        self._say = say
        self._stack = contextlib.ExitStack()
        self._folder = Path(tempfile.mkdtemp(prefix="kveik-bench-"))
        self._lmcache_port = 0
        self._lmcache_http_port = 0

    def __enter__(self) -> Self:
        # A plain SIGTERM would leave the arena behind.
        signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(f"ended by signal {number}"))
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._stack.close()
        if kind is None:
            shutil.rmtree(self._folder, ignore_errors=True)
        else:
            self._say(f"logs are kept in {self._folder}")

    def start_agent(self) -> ServerProcess:
        """Kveik's agent, with an arena and no tier below it."""
        arena = SHARED_MEMORY / f"{self._folder.name}.arena"
        self._stack.callback(arena.unlink, missing_ok=True)
        settings = {
            "socket": str(self._socket),
            "arena": str(arena),
            "arena_bytes": self.spec.shared_gib << 30,
        }
        return self._stack.enter_context(start_agent(sys.executable, settings, os.environ, self._folder))

    def start_lmcache_server(self, second_level: Mapping[str, object] | None = None) -> ServerProcess:
        """LMCache's server, with memory and perhaps a second level, over its fastest way to a CPU engine."""
        self._lmcache_port, self._lmcache_http_port = free_port(), free_port()
        gib = str(self.spec.shared_gib)
        command = [self.spec.engine_python, "-c", "from lmcache.cli.main import main; main()", "server"]
        command += ["--host", "127.0.0.1", "--port", str(self._lmcache_port)]
        command += ["--http-port", str(self._lmcache_http_port), "--prometheus-port", str(free_port())]
        command += ["--l1-size-gb", gib, "--l1-init-size-gb", gib, "--eviction-policy", "LRU"]
        command += ["--supported-transfer-mode", "auto", "--shm-name", self._folder.name]
        if second_level is not None:
            command += ["--l2-adapter", json.dumps(dict(second_level))]
        environment = {**os.environ, **LMCACHE_ENVIRONMENT}
        server = ServerProcess("lmcache-server", command, environment, self._folder / "lmcache.log")
        server = self._stack.enter_context(server)
        server.start()
        server.wait_ready(lambda: _listens(self._lmcache_port), timeout_s=START_TIMEOUT_S)
        return server

    def empty_lmcache_memory(self) -> None:
        """Let the second level of LMCache's server alone have what was saved."""
        request = urllib.request.Request(f"http://127.0.0.1:{self._lmcache_http_port}/cache/clear", method="POST")
        with urllib.request.urlopen(request, timeout=60) as answer:
            answer.read()

    def kveik_engine(self, name: str, **changes: Any) -> Engine:
        """A ready engine with Kveik's connector."""
        return self._ready(
            self._spec(name, connector={"socket": str(self._socket), **self.spec.connector_settings}, **changes)
        )

    def engine(self, name: str, connector: Mapping[str, Any]) -> Engine:
        """A ready engine with Kveik's connector, set so and no other way."""
        return self._ready(self._spec(name, connector=connector))

    def plain_engine(self, name: str) -> Engine:
        """A ready engine without any connector."""
        return self._ready(self._spec(name))

    def lmcache_engine(self, name: str) -> Engine:
        """A ready engine with LMCache's connector."""
        transfer = {
            "kv_connector": "LMCacheMPConnector",
            "kv_connector_module_path": LMCACHE_MODULE,
            "kv_role": "kv_both",
            "kv_connector_extra_config": {"lmcache.mp.host": "127.0.0.1", "lmcache.mp.port": self._lmcache_port},
        }
        arguments = ["--kv-transfer-config", json.dumps(transfer)]
        return self._ready(self._spec(name, extra_arguments=arguments, extra_environment=LMCACHE_ENVIRONMENT))

    def start_and_stop(self, name: str, *, connector: bool) -> float:
        """Seconds from nothing to the first answer of an engine, which is ended again."""
        settings = {"socket": str(self._socket), **self.spec.connector_settings} if connector else None
        with Engine(self._spec(name, connector=settings), os.environ, self._folder) as engine:
            engine.start()
            return engine.wait_ready(START_TIMEOUT_S)

    @property
    def _socket(self) -> Path:
        return self._folder / "agent.sock"

    def _spec(self, name: str, **changes: Any) -> EngineSpec:
        return EngineSpec(
            name=name,
            python=self.spec.engine_python,
            model=self.spec.model,
            port=free_port(),
            dtype=self.spec.dtype,
            max_model_tokens=self.spec.max_model_tokens,
            kv_cache_bytes=self.spec.engine_bytes,
            # Always said: vLLM-CPU takes one core more for itself when an engine has a connector.
            cores=str(self.spec.core),
            **changes,
        )

    def _ready(self, spec: EngineSpec) -> Engine:
        engine = self._stack.enter_context(Engine(spec, os.environ, self._folder))
        engine.start()
        self._say(f"engine {spec.name} serves after {engine.wait_ready(START_TIMEOUT_S):.0f} s")
        return engine


LMCACHE_ENVIRONMENT = {"LMCACHE_TRACK_USAGE": "false", "PYTHONHASHSEED": "0"}


def _listens(port: int) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=1.0):
            return True
    except OSError:
        return False

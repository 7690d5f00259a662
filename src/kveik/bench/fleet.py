"""Two real engines, agent, router and watchdog on this machine, started with ``kveik up`` as a user would."""

import contextlib
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from kveik.bench.last_will import LastWill
from kveik.bench.service import RoutedService
from kveik.engine.client import EngineClient
from kveik.engine.launch import check_engine_python
from kveik.engine.process import free_port
from kveik.errors import EngineStartError
from kveik.supervise.client import ControlClient
from kveik.supervise.node_folder import NodeFolder
from kveik.verify.proof import Say, Subject
from kveik.verify.testbed import PATIENT, core_of, kv_bytes_per_token, read_model_config

_NODE = "local"
_DOWN = ("down", "--forget")
#: Leaves room for the node's folder and the longest name of a socket in it.
_STATE_BYTES_MAX = 64


@dataclass(frozen=True, kw_only=True)
class FleetPlan:
    """What to start. ``engine_tokens``: what one engine's own KV cache must hold, ``shared_tokens``: the shared one.

    ``simulated`` engines compute nothing; they are for trying out what is built on a fleet.
    """

    model: Path
    engine_python: str
    folder: Path
    dtype: str = "float32"
    max_model_tokens: int = 4096
    engine_tokens: int = 16384
    shared_tokens: int = 32768
    engines: int = 2
    router: Mapping[str, Any] = field(default_factory=dict)
    watchdog: Mapping[str, Any] = field(default_factory=dict)
    simulated: bool = False

    @property
    def state(self) -> Path:
        """Where logs and sockets are. Paths of Unix sockets are short, so a deep folder gets a substitute."""
        inside = self.folder / "state"
        if len(os.fsencode(inside)) <= _STATE_BYTES_MAX:
            return inside
        return Path(tempfile.gettempdir()) / f"kveik-{hashlib.sha256(os.fsencode(self.folder)).hexdigest()[:12]}"

    def tables(self, token_bytes: int, ports: Sequence[int], cores: Sequence[int]) -> Mapping[str, Any]:
        """The configuration: tables by name. ``ports``: of the router, then of each engine."""
        kv_tokens = max(self.engine_tokens, self.max_model_tokens + 1024)
        return {
            "fleet": {"name": "measured", "state_folder": str(self.state)},
            "engine": {
                "python": self.engine_python,
                "model": str(self.model),
                "dtype": self.dtype,
                "max_model_tokens": self.max_model_tokens,
                "kv_cache_bytes": kv_tokens * token_bytes,
                "mode": "eager",
                "simulated": self.simulated,
                "proof_routes": True,  # one of them empties an engine's own cache
            },
            # Slabs and frame headers need room beside the payloads.
            "agent": {
                "arena_bytes": (256 << 20) + int(1.25 * self.shared_tokens * token_bytes),
                "filesystem": str(self.folder / "blocks"),
            },
            "connector": dict(PATIENT),
            "router": {"port": ports[0], **self.router},
            "watchdog": dict(self.watchdog),
            "launch": [
                {"name": f"engine-{number + 1}", "port": ports[number + 1], "cores": core_of(number, cores)}
                for number in range(self.engines)
            ],
        }


def toml(tables: Mapping[str, Any]) -> str:
    """Tables of plain values, and lists of such tables, as TOML."""
    lines: list[str] = []
    for name, table in tables.items():
        for one in table if isinstance(table, list) else [table]:
            lines.append(f"[[{name}]]" if isinstance(table, list) else f"[{name}]")
            lines += [f"{key} = {json.dumps(value)}" for key, value in one.items()]
    return "\n".join(lines) + "\n"


class RunningFleet:
    """A fleet that runs as long as the block lasts. Logs and events stay in the plan's folder."""

    def __init__(self, plan: FleetPlan, say: Say) -> None:
        self.plan = plan
        self._say = say
        self.config = plan.folder / "kveik.toml"
        self.control = ControlClient(str(NodeFolder(plan.state / _NODE).control_socket))
        self.router_url = ""
        self._last_will: LastWill | None = None

    def __enter__(self) -> Self:
        """Raises :class:`ConfigError` before anything starts, and :class:`EngineStartError`."""
        if not self.plan.simulated:
            check_engine_python(self.plan.engine_python)
        token_bytes = kv_bytes_per_token(read_model_config(self.plan.model), self.plan.dtype)
        ports = [free_port() for _ in range(self.plan.engines + 1)]
        self.plan.folder.mkdir(parents=True, exist_ok=True)
        for left_over in (self.plan.state, self.plan.folder / "blocks"):
            shutil.rmtree(left_over, ignore_errors=True)
        self.config.write_text(toml(self.plan.tables(token_bytes, ports, sorted(os.sched_getaffinity(0)))))
        self.router_url = f"http://127.0.0.1:{ports[0]}"
        self._last_will = LastWill(self._command_line(*_DOWN))
        try:
            self._command("up", "-d")
        except BaseException:
            self._down()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._down()

    def processes(self, name: str) -> Sequence[int]:
        """The ids of all processes of a part, now."""
        for process in self.control.status().processes:
            if process.name == name:
                return process.pids
        return ()

    def subjects(self) -> tuple[Subject, Subject]:
        """The first two engines."""
        first, second = (
            Subject(process.name, EngineClient(process.url), self.plan.model.name)
            for process in self.control.status().processes
            if process.kind == "engine"
        )
        return first, second

    def service(self) -> RoutedService:
        """The fleet behind its address."""
        return RoutedService(self.router_url, self.subjects(), self.processes, self._say)

    def _command_line(self, *words: str) -> list[str]:
        return [sys.executable, "-m", "kveik.cli.main", *words, "--config", str(self.config)]

    def _command(self, *words: str) -> None:
        code = subprocess.run(self._command_line(*words), check=False, stdin=subprocess.DEVNULL).returncode
        if code:
            raise EngineStartError(f"kveik {words[0]} ended with {code}; its logs are in {self.plan.state}")

    def _down(self) -> None:
        with contextlib.suppress(EngineStartError):
            self._command(*_DOWN)
        if self._last_will is not None:
            self._last_will.revoke()
            self._last_will = None

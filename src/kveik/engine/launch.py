"""Start real engines and an agent: what their command lines and environments are, and when they are ready.

The builders are pure; :class:`Engine` and :func:`start_agent` are the thin part around
:class:`~kveik.engine.process.ServerProcess`.
"""

import contextlib
import json
import socket
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from kveik.config import AgentSettings, load, rows
from kveik.engine.client import EngineClient, warm_up
from kveik.engine.kv_transfer import HASH_SEED, kv_transfer_argument
from kveik.engine.process import Progress, ServerProcess, silent
from kveik.errors import ConfigError, EngineError


@dataclass(frozen=True, kw_only=True)
class EngineSpec:
    """One engine to start on this machine.

    ``connector`` holds settings of the ``[connector]`` table, or is None for an engine without
    Kveik. ``cores`` is vLLM-CPU's core list, for example ``0`` or ``0-3``; empty leaves it alone.
    ``served_name``: empty for the name of the model's folder. ``events`` and ``replay``: where others find its KV
    events; empty: it publishes none. ``shutdown_s``: how long running requests may go on after SIGTERM.
    """

    name: str
    python: str
    model: Path
    port: int
    dtype: str = "float32"
    max_model_tokens: int = 0
    kv_cache_bytes: int = 0
    cores: str = ""
    connector: Mapping[str, Any] | None = None
    extra_arguments: Sequence[str] = ()
    extra_environment: Mapping[str, str] = field(default_factory=dict)
    host: str = "127.0.0.1"
    served_name: str = ""
    events: str = ""
    replay: str = ""
    shutdown_s: int = 0

    @property
    def url(self) -> str:
        """Where the engine will listen."""
        return f"http://{self.host}:{self.port}"


def engine_command(spec: EngineSpec) -> list[str]:
    """The command line of a vLLM server for tests and proofs: eager, one model, loopback only.

    Without our connector it is vLLM alone.
    """
    if spec.connector is not None:
        return [*serve_command(spec), "--enforce-eager"]
    return [spec.python, "-m", "vllm.entrypoints.openai.api_server", "--model", str(spec.model), "--enforce-eager",
            *_arguments(spec)]  # fmt: skip


def serve_command(spec: EngineSpec) -> list[str]:
    """A vLLM server for a fleet: what ``vllm serve`` runs, which alone knows ranks without an API server."""
    command = [spec.python, "-m", "kveik.connector.serve", str(spec.model), *_arguments(spec)]
    if spec.shutdown_s:
        command += ["--shutdown-timeout", str(spec.shutdown_s)]
    return command


def _arguments(spec: EngineSpec) -> list[str]:
    command = ["--served-model-name", spec.served_name or spec.model.name]
    command += ["--host", spec.host, "--port", str(spec.port), "--dtype", spec.dtype]
    command += ["--enable-prompt-tokens-details", "--disable-uvicorn-access-log"]
    if spec.events:
        command += ["--kv-events-config", kv_events_argument(spec.events, spec.replay)]
    if spec.max_model_tokens:
        command += ["--max-model-len", str(spec.max_model_tokens)]
    if spec.kv_cache_bytes:
        command += ["--kv-cache-memory-bytes", str(spec.kv_cache_bytes)]
    if spec.connector is not None:
        command += ["--kv-transfer-config", kv_transfer_argument(spec.connector)]
    return [*command, *spec.extra_arguments]


def kv_events_argument(events: str, replay: str) -> str:
    """The value of ``--kv-events-config`` for an engine that is found at these ZMQ endpoints.

    vLLM binds a publisher to all addresses only (``vllm/distributed/kv_events.py``, 0.32): it would connect to one.
    """
    config = {
        "enable_kv_cache_events": True,
        "publisher": "zmq",
        "endpoint": _everywhere(events),
        "replay_endpoint": _everywhere(replay) if replay else None,
    }
    return json.dumps(config, separators=(",", ":"))


def _everywhere(endpoint: str) -> str:
    scheme, _, rest = endpoint.partition("://")
    return f"tcp://*:{rest.rpartition(':')[2]}" if scheme == "tcp" else endpoint


def engine_environment(spec: EngineSpec, inherited: Mapping[str, str]) -> dict[str, str]:
    """The environment of that server: offline, comparable hashes, development routes on."""
    environment = {
        **inherited,
        "HF_HUB_OFFLINE": "1",
        "PYTHONHASHSEED": HASH_SEED,
        "PYTHONUNBUFFERED": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_SERVER_DEV_MODE": "1",
    }
    # Empty text in it crashes vLLM-CPU, and --kv-cache-memory-bytes says the size.
    environment.pop("VLLM_CPU_KVCACHE_SPACE", None)
    if spec.cores:
        environment["VLLM_CPU_OMP_THREADS_BIND"] = spec.cores
    return {**environment, **spec.extra_environment}


class Engine:
    """An engine that we started: its process group and a client for it. A context manager."""

    def __init__(self, spec: EngineSpec, inherited: Mapping[str, str], log_folder: Path) -> None:
        self.spec = spec
        self.client = EngineClient(spec.url)
        self.process = ServerProcess(
            spec.name,
            engine_command(spec),
            engine_environment(spec, inherited),
            log_folder / f"{spec.name}.log",
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.stop()

    @property
    def model_name(self) -> str:
        """The name under which the model is served."""
        return self.spec.model.name

    def start(self) -> None:
        """Start the process; :meth:`wait_ready` says when it serves."""
        self.process.start()

    def wait_ready(self, timeout_s: float = 300.0, progress: Progress = silent) -> float:
        """Wait for one real inference; the seconds that took. Raises EngineStartError."""
        return self.process.wait_ready(self._serves, timeout_s, progress)

    def kill_and_restart(self, timeout_s: float = 300.0, progress: Progress = silent) -> float:
        """kill -9 of the whole group, then the same engine again; seconds until it serves."""
        self.process.kill()
        self.start()
        return self.wait_ready(timeout_s, progress)

    def _serves(self) -> bool:
        if not self.client.health():
            return False
        try:
            warm_up(self.client, self.model_name)
        except EngineError:
            return False
        return True


def agent_environment(settings: Mapping[str, Any], inherited: Mapping[str, str]) -> dict[str, str]:
    """The environment of an agent with these settings of the ``[agent]`` table.

    Raises :class:`~kveik.errors.ConfigError` for an unknown setting or a bad value.
    """
    load(AgentSettings, given=settings)
    names = {row.name: row.env for row in rows("agent")}
    return {**inherited, "PYTHONUNBUFFERED": "1", **{names[name]: str(value) for name, value in settings.items()}}


def start_agent(
    python: str,
    settings: Mapping[str, Any],
    inherited: Mapping[str, str],
    log_folder: Path,
    timeout_s: float = 30.0,
    *,
    name: str = "agent",
    config: Path | None = None,
) -> ServerProcess:
    """A running agent; ``settings``, which must name its ``socket``, count more than ``config``.

    Raises EngineStartError.
    """
    path = Path(settings["socket"])
    environment = agent_environment(settings, inherited)
    command = [python, "-m", "kveik.cli.main", "agent", *(["--config", str(config)] if config is not None else [])]
    agent = ServerProcess(name, command, environment, log_folder / f"{name}.log")
    agent.start()
    try:
        agent.wait_ready(lambda: listens(path), timeout_s)
    except BaseException:
        agent.stop()
        raise
    return agent


def listens(path: Path) -> bool:
    """Whether somebody accepts connections on this Unix socket."""
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(1.0)
        probe.connect(str(path))
        return True
    return False


def check_engine_python(python: str) -> None:
    """Make sure that this interpreter has vLLM and Kveik, before minutes are spent on a start.

    Raises :class:`~kveik.errors.ConfigError` that says what is missing.
    """
    question = "import importlib.util as u; print(*(m for m in ('vllm', 'kveik') if u.find_spec(m) is None))"
    try:
        answer = subprocess.run(
            [python, "-c", question],
            check=False,
            capture_output=True,
            text=True,
            timeout=60,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ConfigError(f"cannot run the engine's Python {python}: {error}") from error
    if answer.returncode != 0:
        raise ConfigError(f"the engine's Python {python} fails: {answer.stderr.strip()[-500:]}")
    if missing := answer.stdout.split():
        raise ConfigError(f"{' and '.join(missing)} not installed for the engine's Python {python}")

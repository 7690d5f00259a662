"""Command lines and environments of engines and agents."""

import json
import os
import socket
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from kveik.config import AgentSettings, load
from kveik.engine.client import CompletionRequest
from kveik.engine.launch import (
    Engine,
    EngineSpec,
    agent_environment,
    check_engine_python,
    engine_command,
    engine_environment,
    kv_events_argument,
    serve_command,
    start_agent,
)
from kveik.engine.process import free_port
from kveik.errors import ConfigError, EngineStartError

SPEC = EngineSpec(name="engine-a", python="/venv/bin/python", model=Path("/models/small"), port=18000)


def value_after(command: list[str], flag: str) -> str:
    return command[command.index(flag) + 1]


def test_an_engine_listens_on_loopback_and_serves_under_the_folders_name() -> None:
    command = engine_command(SPEC)
    assert command[:3] == ["/venv/bin/python", "-m", "vllm.entrypoints.openai.api_server"]
    assert value_after(command, "--host") == "127.0.0.1"
    assert value_after(command, "--served-model-name") == "small"
    assert "--enable-prompt-tokens-details" in command


def test_an_engine_without_kveik_gets_no_transfer_configuration() -> None:
    assert "--kv-transfer-config" not in engine_command(SPEC)


def test_an_engine_with_kveik_gets_its_settings() -> None:
    spec = EngineSpec(name="e", python="p", model=Path("m"), port=1, connector={"socket": "/run/a.sock"})
    config = json.loads(value_after(engine_command(spec), "--kv-transfer-config"))
    assert config["kv_load_failure_policy"] == "recompute"
    assert config["kv_connector_extra_config"] == {"socket": "/run/a.sock"}
    assert engine_command(spec)[:4] == ["p", "-m", "kveik.connector.serve", "m"]
    assert engine_command(spec)[-1] == "--enforce-eager"


FLEET_SPEC = EngineSpec(
    name="engine-a",
    python="/venv/bin/python",
    model=Path("/models/small"),
    port=18000,
    host="10.0.0.1",
    served_name="qwen",
    events="tcp://10.0.0.1:20000",
    replay="tcp://10.0.0.1:21000",
    shutdown_s=120,
)


def test_an_engine_of_a_fleet_is_served_as_people_do_it_and_lets_requests_finish() -> None:
    command = serve_command(FLEET_SPEC)
    assert command[:4] == ["/venv/bin/python", "-m", "kveik.connector.serve", "/models/small"]
    assert "--enforce-eager" not in command
    assert value_after(command, "--served-model-name") == "qwen"
    assert value_after(command, "--host") == "10.0.0.1"
    assert value_after(command, "--shutdown-timeout") == "120"
    assert FLEET_SPEC.url == "http://10.0.0.1:18000"
    assert "--shutdown-timeout" not in serve_command(SPEC)


def test_kv_events_are_published_on_all_addresses_which_is_the_only_way_that_vllm_binds() -> None:
    config = json.loads(value_after(serve_command(FLEET_SPEC), "--kv-events-config"))
    assert config["enable_kv_cache_events"]
    assert (config["endpoint"], config["replay_endpoint"]) == ("tcp://*:20000", "tcp://*:21000")
    assert "--kv-events-config" not in serve_command(SPEC)


def test_kv_events_for_this_machine_alone_go_through_a_socket_file() -> None:
    config = json.loads(kv_events_argument("ipc:///run/a.events", ""))
    assert (config["endpoint"], config["replay_endpoint"]) == ("ipc:///run/a.events", None)


def test_further_arguments_come_last_so_that_they_win() -> None:
    spec = EngineSpec(name="e", python="p", model=Path("m"), port=1, extra_arguments=("--dtype", "bfloat16"))
    assert engine_command(spec)[-2:] == ["--dtype", "bfloat16"]


def test_the_environment_is_offline_comparable_and_keeps_the_rest() -> None:
    environment = engine_environment(SPEC, {"HOME": "/home/me", "VLLM_CPU_KVCACHE_SPACE": ""})
    assert environment["HOME"] == "/home/me"
    assert environment["PYTHONHASHSEED"] == "0"
    assert environment["HF_HUB_OFFLINE"] == "1"
    assert "VLLM_CPU_KVCACHE_SPACE" not in environment
    assert "VLLM_CPU_OMP_THREADS_BIND" not in environment


def test_cores_are_bound_when_given() -> None:
    spec = EngineSpec(name="e", python="p", model=Path("m"), port=1, cores="0-3")
    assert engine_environment(spec, {})["VLLM_CPU_OMP_THREADS_BIND"] == "0-3"


def test_agent_settings_travel_by_environment_and_come_back_the_same() -> None:
    given = {"socket": "/run/a.sock", "arena_bytes": 1 << 20, "huge_pages": False}
    settings = load(AgentSettings, environ=agent_environment(given, {}))
    assert (settings.socket, settings.arena_bytes, settings.huge_pages) == ("/run/a.sock", 1 << 20, False)


def test_an_unknown_agent_setting_is_refused() -> None:
    with pytest.raises(ConfigError, match="arena_size"):
        agent_environment({"arena_size": 1}, {})


def test_an_interpreter_without_vllm_is_named() -> None:
    # The unit tests run where vLLM is not installed; where it is, there is nothing to complain about.
    try:
        check_engine_python(sys.executable)
    except ConfigError as error:
        assert "vllm not installed" in str(error)


def test_an_interpreter_that_does_not_exist_is_named() -> None:
    with pytest.raises(ConfigError, match="/nowhere/python"):
        check_engine_python("/nowhere/python")


def test_sizes_are_given_only_where_they_are_known() -> None:
    assert not {"--max-model-len", "--kv-cache-memory-bytes"} & set(engine_command(SPEC))
    sized = EngineSpec(name="e", python="p", model=Path("m"), port=1, max_model_tokens=512, kv_cache_bytes=1 << 28)
    assert value_after(engine_command(sized), "--max-model-len") == "512"
    assert value_after(engine_command(sized), "--kv-cache-memory-bytes") == str(1 << 28)


#: Stands in for an interpreter with vLLM: it serves on the port that it is told, and is healthy
#: before it can compute. ``{ready}`` is a file without which no inference works.
STAND_IN = """\
#!{python}
import http.server, json, os, sys

class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()

    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200 if os.path.exists({ready!r}) else 503)
        self.end_headers()
        event = {{"choices": [{{"token_ids": [os.getpid()], "text": "x"}}]}}
        self.wfile.write(b"data: " + json.dumps(event).encode() + b"\\n\\ndata: [DONE]\\n\\n")

arguments = sys.argv[1:]
port = int(arguments[arguments.index("--port") + 1])
print("seed", os.environ["PYTHONHASHSEED"], flush=True)
http.server.ThreadingHTTPServer(("127.0.0.1", port), Handler).serve_forever()
"""


@pytest.fixture
def stand_in(tmp_path: Path) -> Iterator[Engine]:
    """An engine whose interpreter is the stand-in, not started yet."""
    python = tmp_path / "python"
    python.write_text(STAND_IN.format(python=sys.executable, ready=str(tmp_path / "ready")))
    python.chmod(0o700)
    spec = EngineSpec(name="engine", python=str(python), model=Path("/models/small"), port=free_port())
    with Engine(spec, os.environ, tmp_path) as engine:
        yield engine
    assert not engine.process.running


def pid_of(engine: Engine) -> int:
    return engine.client.complete(CompletionRequest((1,), 1), engine.model_name).token_ids[0]


def test_an_engine_is_ready_after_its_first_inference_and_ends_with_its_context(
    stand_in: Engine, tmp_path: Path
) -> None:
    stand_in.start()
    (tmp_path / "ready").touch()
    assert stand_in.wait_ready(20.0) < 20.0
    assert stand_in.model_name == "small"
    assert pid_of(stand_in) > 0
    assert "seed 0" in stand_in.process.log_tail()


def test_health_alone_does_not_make_an_engine_ready(stand_in: Engine, tmp_path: Path) -> None:
    stand_in.start()
    waited: list[float] = []

    def progress(seconds: float) -> None:
        waited.append(seconds)
        if stand_in.client.health():
            (tmp_path / "ready").touch()

    assert not (tmp_path / "ready").exists()
    stand_in.wait_ready(20.0, progress)
    assert waited, "it was not ready as soon as it was healthy"


def test_an_engine_that_never_computes_is_given_up_with_its_log(stand_in: Engine) -> None:
    stand_in.start()
    with pytest.raises(EngineStartError, match=r"engine was not ready within 0\.6 s") as caught:
        stand_in.wait_ready(0.6)
    assert "its log ends with" in str(caught.value)


def test_a_killed_engine_comes_back_as_another_process_on_the_same_port(stand_in: Engine, tmp_path: Path) -> None:
    (tmp_path / "ready").touch()
    stand_in.start()
    stand_in.wait_ready(20.0)
    before = pid_of(stand_in)
    assert stand_in.kill_and_restart(20.0) < 20.0
    assert pid_of(stand_in) != before


def test_an_agent_is_started_with_its_settings_and_answers(tmp_path: Path) -> None:
    path = tmp_path / "agent.sock"
    settings = {"socket": str(path), "arena": str(tmp_path / "arena"), "arena_bytes": "16 MiB"}
    with start_agent(sys.executable, settings, os.environ, tmp_path) as agent:
        assert agent.running
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(path))
        assert (tmp_path / "arena").stat().st_size == 16 << 20
    assert not path.exists(), "it was killed, because it did not stop when told to"
    assert "its blocks stay in the arena" in (tmp_path / "agent.log").read_text()


def test_an_agent_that_cannot_start_is_told_with_what_it_said(tmp_path: Path) -> None:
    settings = {"socket": str(tmp_path / "agent.sock"), "arena": str(tmp_path / "no" / "arena"), "arena_bytes": 1 << 24}
    start_s = time.monotonic()
    with pytest.raises(EngineStartError, match=r"(?s)agent ended while starting.*cannot create the arena"):
        start_agent(sys.executable, settings, os.environ, tmp_path)
    assert time.monotonic() - start_s < 25.0, "as soon as it ended, not at the time-out"


@pytest.mark.parametrize(
    ("script", "complaint"),
    [
        ("echo broken >&2; exit 3", "fails: broken"),
        ("echo vllm", "^vllm not installed"),
        ("echo vllm kveik", "vllm and kveik"),
    ],
)
def test_an_interpreter_that_cannot_serve_is_told_before_minutes_are_spent(
    tmp_path: Path, script: str, complaint: str
) -> None:
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\n{textwrap.dedent(script)}\n")
    python.chmod(0o700)
    with pytest.raises(ConfigError, match=complaint):
        check_engine_python(str(python))

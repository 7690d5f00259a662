"""Command lines and environments of engines and agents."""

import json
import sys
from pathlib import Path

import pytest

from kveik.config import AgentSettings, load
from kveik.engine.launch import EngineSpec, agent_environment, check_engine_python, engine_command, engine_environment
from kveik.errors import ConfigError

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

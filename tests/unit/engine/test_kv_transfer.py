"""What an existing vLLM needs."""

import json

import pytest

from kveik.engine.kv_transfer import PLATFORMS, kv_transfer_argument, kv_transfer_config, required_environment
from kveik.errors import ConfigError


def test_the_configuration_names_the_connector_and_recomputes_what_is_lost() -> None:
    assert kv_transfer_config({}) == {
        "kv_connector": "KveikConnector",
        "kv_connector_module_path": "kveik.connector.vllm",
        "kv_role": "kv_both",
        "kv_load_failure_policy": "recompute",
        "kv_connector_extra_config": {},
    }


def test_only_given_settings_are_written() -> None:
    argument = json.loads(kv_transfer_argument({"save": False}))
    assert argument["kv_connector_extra_config"] == {"save": False}


@pytest.mark.parametrize("given", [{"sokcet": "x"}, {"lookup_deadline_s": "soon"}, {"min_hit_tokens": 0}])
def test_bad_settings_are_refused_before_an_engine_sees_them(given: dict[str, object]) -> None:
    with pytest.raises(ConfigError):
        kv_transfer_config(given)


@pytest.mark.parametrize("platform", PLATFORMS)
def test_every_platform_gets_one_hash_seed(platform: str) -> None:
    assert required_environment(platform)["PYTHONHASHSEED"] == "0"


def test_only_cpu_engines_are_told_about_cores() -> None:
    assert [name for name in PLATFORMS if "VLLM_CPU_OMP_THREADS_BIND" in required_environment(name)] == ["cpu"]


def test_an_unknown_platform_is_refused() -> None:
    with pytest.raises(ConfigError, match="tpu"):
        required_environment("tpu")

"""The parts of the testbed that need no engine."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from kveik.errors import ConfigError
from kveik.verify import testbed
from kveik.verify.testbed import Testbed, TestbedSpec, core_of, kv_bytes_per_token, read_model_config

SMALL = {"num_hidden_layers": 30, "num_attention_heads": 9, "num_key_value_heads": 3, "head_dim": 64}


def test_kv_bytes_count_keys_and_values_of_every_layer() -> None:
    assert kv_bytes_per_token(SMALL, "float32") == 2 * 30 * 3 * 64 * 4
    assert kv_bytes_per_token(SMALL, "bfloat16") == 2 * 30 * 3 * 64 * 2


def test_a_model_that_names_no_kv_heads_has_as_many_as_attention_heads() -> None:
    config = {"num_hidden_layers": 2, "num_attention_heads": 4, "hidden_size": 256}
    assert kv_bytes_per_token(config, "float32") == 2 * 2 * 4 * 64 * 4


def test_an_unknown_dtype_or_a_configuration_without_layers_is_refused() -> None:
    with pytest.raises(ConfigError, match="int8"):
        kv_bytes_per_token(SMALL, "int8")
    with pytest.raises(ConfigError, match="num_hidden_layers"):
        kv_bytes_per_token({"num_attention_heads": 4, "hidden_size": 256}, "float32")


def test_the_text_part_of_a_models_configuration_is_read(tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.write_text(json.dumps(SMALL))
    assert read_model_config(tmp_path) == SMALL
    file.write_text(json.dumps({"text_config": SMALL, "vision_config": {}}))
    assert read_model_config(tmp_path) == SMALL


@pytest.mark.parametrize("content", [None, "{", ""])
def test_a_folder_without_a_readable_configuration_is_refused(tmp_path: Path, content: str | None) -> None:
    if content is not None:
        (tmp_path / "config.json").write_text(content)
    with pytest.raises(ConfigError, match=r"config\.json"):
        read_model_config(tmp_path)


def test_each_engine_computes_on_one_core_even_where_there_is_only_one() -> None:
    assert [core_of(number, [2, 3]) for number in (0, 1)] == ["2", "3"]
    assert [core_of(number, [5]) for number in (0, 1)] == ["5", "5"]


def test_an_arena_that_shared_memory_cannot_hold_goes_to_the_folder(tmp_path: Path) -> None:
    assert testbed._arena_path(tmp_path, 1 << 60) == tmp_path / "agent.arena"


def test_arenas_that_a_killed_testbed_left_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(testbed, "_SHARED_MEMORY", tmp_path)
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    stale, living = (tmp_path / f"kveik-testbed-{pid}.agent.arena" for pid in (gone.pid, os.getppid()))
    stale.touch()
    living.touch()
    chosen = testbed._arena_path(tmp_path / "folder", 1)
    assert chosen == tmp_path / f"kveik-testbed-{os.getpid()}.agent.arena"
    assert not stale.exists()
    assert living.exists()


def test_a_testbed_without_vllm_starts_nothing(tmp_path: Path) -> None:
    said: list[str] = []
    spec = TestbedSpec(model=tmp_path, engine_python="/nowhere/python", agent_python=sys.executable)
    with pytest.raises(ConfigError, match="/nowhere/python"), Testbed(spec, said.append):
        pytest.fail("it must not start")
    assert said == []

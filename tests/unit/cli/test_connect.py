"""``kveik connect`` prints what can be pasted."""

import json
import shlex

import pytest

from kveik.cli.main import main


def test_the_printed_command_line_carries_the_configuration(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["connect", "--set", "save=false", "--set", "lookup_deadline_s=0.1"]) == 0
    *_, command = capsys.readouterr().out.splitlines()
    words = shlex.split(command)
    config = json.loads(words[words.index("--kv-transfer-config") + 1])
    assert config["kv_connector_module_path"] == "kveik.connector.vllm"
    assert config["kv_connector_extra_config"] == {"save": False, "lookup_deadline_s": 0.1}


def test_json_has_configuration_and_environment(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["connect", "--platform", "ascend", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["environment"] == {"PYTHONHASHSEED": "0"}
    assert document["kv_transfer_config"]["kv_load_failure_policy"] == "recompute"


@pytest.mark.parametrize("pair", ["sokcet=x", "lookup_deadline_s=soon", "save"])
def test_settings_that_would_fail_in_the_engine_fail_here(pair: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["connect", "--set", pair]) == 2
    assert pair.split("=", maxsplit=1)[0] in capsys.readouterr().err

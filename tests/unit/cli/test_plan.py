"""`kveik plan` prints figures with their formulas, and its exit code says whether the goal is met."""

import json
from pathlib import Path

import pytest

from kveik.cli.main import main

QWEN = ["plan", "--model", "qwen3-32b", "--hardware", "a2"]
FLASH = ["plan", "--model", "deepseek-v4.1-flash", "--hardware", "a3"]


def figures(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, object]:
    main([*arguments, "--json"])
    sections = json.loads(capsys.readouterr().out)["sections"]
    return {row["name"]: row["value"] for rows in sections.values() for row in rows}


def test_600k_context_with_16_requests_fits_one_a3(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*FLASH, "--context", "600000", "--requests", "16"]) == 0
    printed = capsys.readouterr().out
    assert "600,000 tokens x 16 requests" in printed
    assert "yes" in printed
    assert "memory x utilization - weights - other" in printed


def test_what_does_not_fit_has_its_own_exit_code(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*QWEN, "--context", "40960", "--requests", "640"]) == 1


def test_a_preset_brings_its_layout_and_its_draft_layer(capsys: pytest.CaptureFixture[str]) -> None:
    found = figures(capsys, "plan", "--model", "glm-5", "--hardware", "a2", "--nodes", "2", "--context", "131072",
                    "--requests", "4")  # fmt: skip
    assert found["requests of a rank"] == 2
    assert found["KV drafter"] == 1152
    assert found["131,072 tokens x 4 requests"] == "yes"


def test_a_config_alone_is_enough(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "config.json"
    file.write_text(
        json.dumps({"num_hidden_layers": 2, "num_attention_heads": 4, "hidden_size": 256, "vocab_size": 99})
    )
    found = figures(
        capsys, "plan", "--config", str(file), "--memory-gib", "8", "--kv-dtype", "fp8", "--weights-gib", "1"
    )
    assert found["KV a token on a device"] == 2 * 2 * 4 * 64
    assert found["weights"] == 1 << 30


def test_a_model_folder_is_enough(models: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = figures(capsys, "plan", "--model-folder", str(models / "tiny-qwen3next"), "--memory-gib", "8")
    assert found["KV states"] == 205_824


def test_the_field_reports_gain_is_reproduced(capsys: pytest.CaptureFixture[str]) -> None:
    found = figures(capsys, *FLASH[:3], "--pool-tokens", "980000", "--pool-tokens-after", "6780000")
    assert found["left each device"] == 5_162_000_000
    again = figures(capsys, *FLASH[:3], "--pool-tokens", "980000", "--moved-gib", str(5_162_000_000 / 2**30))
    assert again["pool"] == pytest.approx(6.92, abs=0.005)


def test_lengths_staging_and_cost_are_planned_without_a_model(capsys: pytest.CaptureFixture[str]) -> None:
    mix = ["--lengths", "uniform:10-1000", "--shared-tokens", "100"]
    stage = ["--staging-mib", "8,7,6,5", "--staging-least-mib", "0"]
    money = ["--price", "2", "--devices", "8", "--tokens-per-s", "1000", "--speedup", "2.3"]
    found = figures(capsys, "plan", *mix, *stage, *money)
    assert found["device staging, parallel"] == 52 << 20
    assert found["saved"] == pytest.approx(56.5, abs=0.05)
    assert {"unused if reserved ahead", "saved by sharing"} <= set(found)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["plan"], "nothing to plan"),
        (["plan", "--model", "glm-5"], "nothing to plan"),
        (["plan", "--model", "glm-5", "--hardware", "cpu"], "--memory-gib"),
        (["plan", "--config", "/none.json", "--memory-gib", "8"], "cannot read /none.json"),
        (["plan", "--pool-tokens", "10"], "needs the model"),
        (["plan", "--model", "deepseek-v4.1-flash", "--pool-tokens", "10"], "--moved-gib or --pool-tokens-after"),
        (["plan", "--lengths", "x"], "--lengths is 'x'"),
        (["plan", "--staging-mib", "x"], "--staging-mib is 'x'"),
    ],
)
def test_wrong_use_is_told(arguments: list[str], told: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 2
    assert told in capsys.readouterr().err


def test_a_python_without_vllm_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "--lengths", "10,20", "--python", "/bin/false"]) == 3
    assert "/bin/false cannot say what its vLLM does" in capsys.readouterr().err

"""``kveik verify`` and ``kveik demo`` with engines that they start themselves."""

import importlib.util
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from kveik.bench.workload import Route
from kveik.cli.main import main
from tests.processor import HAS_AMX

pytestmark = pytest.mark.timeout(900)


@pytest.fixture
def verify(
    engine_python: str, model: Callable[[str], Path], capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, dict[str, Any]]]:
    """Run the proof on a model; its exit code and JSON document."""

    def run(name: str, *arguments: str) -> tuple[int, dict[str, Any]]:
        where = ["--start", "--model", str(model(name)), "--engine-python", engine_python]
        code = main(["verify", *where, "--json", *arguments])
        return code, json.loads(capsys.readouterr().out or "{}")

    return run


def leg(document: dict[str, Any], name: str) -> dict[str, Any]:
    found: dict[str, Any] = next(one for one in document["legs"] if one["leg"] == name)
    return found


def no_child_is_left() -> bool:
    return not [child for child in psutil.Process().children(recursive=True) if child.status() != psutil.STATUS_ZOMBIE]


@pytest.mark.long
def test_a_model_with_sliding_windows_holds_in_every_leg(verify: Callable[..., tuple[int, dict[str, Any]]]) -> None:
    code, document = verify("tiny-gemma3", "--answer-tokens", "8")
    assert code == 0, [one["complaints"] for one in document["legs"]]
    assert document["about"]["window_tokens"] > 0
    assert [one["leg"] for one in document["legs"]].count("restart") == 2
    for name in ("reset", "other", "restart"):
        tokens = leg(document, name)["tokens"]
        assert tokens["external"] == tokens["used"] == tokens["expected_hits"] > 0
        assert leg(document, name)["blocks"]["read_back"] > 0
    assert no_child_is_left()


@pytest.mark.long
@pytest.mark.skipif(HAS_AMX, reason="vLLM 0.32's worker dies of this tiny model in bfloat16 on a processor with AMX")
def test_in_bfloat16_the_local_hit_is_the_reference(verify: Callable[..., tuple[int, dict[str, Any]]]) -> None:
    code, document = verify("tiny-qwen3", "--dtype", "bfloat16", "--skip", "restart", "--mode", "single")
    assert code == 0, [one["complaints"] for one in document["legs"]]
    assert document["rules"]["single"]["reference"] == "local"
    assert document["rules"]["single"]["same_ids"] is False


@pytest.mark.parametrize("fault", ["swap_layers", pytest.param("shift_block", marks=pytest.mark.long)])
def test_wrong_bytes_under_a_valid_checksum_are_caught_at_a_hit_rate_of_100_percent(
    verify: Callable[..., tuple[int, dict[str, Any]]], fault: str
) -> None:
    code, document = verify(
        "tiny-qwen3", "--lengths", "129,300", "--skip", "restart", "--mode", "single", "--plant-fault", fault
    )
    assert code == 1
    assert leg(document, "local")["holds"]
    for name in ("reset", "other"):
        found = leg(document, name)
        assert not found["holds"]
        assert found["tokens"]["external"] == found["tokens"]["expected_hits"] > 0
        assert found["blocks"]["mismatched"] == found["blocks"]["failed"] == 0
        assert all(answer["logprob_distance"] != 0 for answer in found["answers"])


@pytest.mark.long
def test_the_demonstration_writes_results_and_plot_and_stops_everything(
    engine_python: str, model: Callable[[str], Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--model", str(model("smollm2-135m-instruct")), "--engine-python", engine_python]
    assert main(["demo", *arguments, "--lengths", "200,600", "--output", str(tmp_path)]) == 0
    document = json.loads((tmp_path / "ttft.json").read_text())
    assert [row["prompt_tokens"] for row in document["rows"]] == [200, 600]
    for row in document["rows"]:
        assert row["equal"]
        assert set(row["routes"]) == {route.name.lower() for route in Route}
        assert row["routes"]["other"]["hit_tokens"] == row["routes"]["local"]["hit_tokens"] > 0
    assert "times faster" in (shown := capsys.readouterr().out)
    assert "killed with -9 under load" in shown.splitlines()[-1]
    assert document["outage"]["failed"] == document["outage"]["wrong"] == 0
    if importlib.util.find_spec("matplotlib"):  # the plot itself is tested where it is installed
        assert (tmp_path / "ttft.png").stat().st_size > 10_000
    assert no_child_is_left()

"""``kveik demo``: it fails early and clearly where it cannot run, and writes down what it measured."""

import importlib.util
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from kveik.bench.demo import Demo, Demonstrated, DemoPlan
from kveik.cli import demo
from kveik.cli.main import main
from kveik.errors import EngineStartError
from kveik.simulate.behaviour import Behaviour
from kveik.simulate.engine import SimulatedEngine
from kveik.verify.proof import Say
from tests.unit.bench.test_demo import Pair


def test_without_a_model_it_says_which_file_is_missing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "--model", str(tmp_path), "--output", str(tmp_path / "out")]) == 3
    assert "kveik demo: " in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("lengths", ["", "0", "512,many"])
def test_lengths_that_are_none_are_wrong_use(lengths: str, tmp_path: Path) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["demo", "--model", str(tmp_path), "--lengths", lengths])
    assert caught.value.code == 2


def over_simulated_engines(behaviour: Behaviour) -> Callable[[DemoPlan, Say], Demonstrated]:
    """The demonstration as it is, on two engines that need no model; the second one behaves like that."""

    def demonstrate(plan: DemoPlan, say: Say) -> Demonstrated:
        shared: set[bytes] = set()
        with SimulatedEngine(shared) as first, SimulatedEngine(shared, behaviour=behaviour) as second:
            return Demo(Pair(first, second), plan.answer_tokens, say).run(plan.lengths)

    return demonstrate


@pytest.fixture
def arguments(tmp_path: Path) -> list[str]:
    return ["demo", "--model", str(tmp_path), "--lengths", "100,40,40", "--output", str(tmp_path / "new" / "out")]


def test_what_was_measured_is_shown_and_written_down(
    arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(demo, "demonstrate", over_simulated_engines(Behaviour()))
    assert main(arguments) == 0
    document = json.loads((tmp_path / "new" / "out" / "ttft.json").read_text())
    assert document["model"] == tmp_path.name
    assert "40 tokens, cold" in (shown := capsys.readouterr().out)
    assert "100 tokens, after kill -9" in shown
    assert "ttft.json" in shown
    if importlib.util.find_spec("matplotlib") is not None:
        assert (tmp_path / "new" / "out" / "ttft.png").read_bytes().startswith(b"\x89PNG")


def test_answers_that_differ_give_one_and_are_written_down_all_the_same(
    arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demo, "demonstrate", over_simulated_engines(Behaviour(wrong_after_shared_hit=True)))
    assert main(arguments) == 1
    assert (tmp_path / "new" / "out" / "ttft.json").exists()


def test_without_a_plotting_library_the_figures_are_written_and_that_is_said(
    arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(demo, "demonstrate", over_simulated_engines(Behaviour()))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "matplotlib" else object())
    assert main(arguments) == 0
    assert [file.name for file in (tmp_path / "new" / "out").iterdir()] == ["ttft.json"]
    assert "no plot: matplotlib is not installed" in capsys.readouterr().err


def test_an_engine_that_does_not_start_gives_three_and_its_reason(
    arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    plans: list[DemoPlan] = []

    def demonstrate(plan: DemoPlan, say: Say) -> Demonstrated:
        plans.append(plan)
        raise EngineStartError("engine-a ended while starting")

    monkeypatch.setattr(demo, "demonstrate", demonstrate)
    assert main([*arguments, "--engine-python", "/venv/bin/python"]) == 3
    assert "kveik demo: engine-a ended while starting" in capsys.readouterr().err
    (plan,) = plans
    assert (plan.lengths, plan.engine_python, plan.folder.name) == ((40, 100), "/venv/bin/python", "fleet")
    assert not (tmp_path / "new").exists()

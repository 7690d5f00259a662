"""Command lines of engines are judged by what the installed vLLM takes."""

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from kveik.diagnose.options_check import Line, check_options, judge_line, served
from kveik.doctor.check import Context, Outcome
from kveik.doctor.fleet_described import DescribedEngine, DescribedFleet
from kveik.doctor.fleet_view import Fleet, FleetView, SeenEngine
from kveik.engine.client import ServedModel
from kveik.profiles.known_options import committed
from tests.unit.doctor.paper_fleet import PaperFleet

VERSION = committed().version


def line(*arguments: str, environment: Mapping[str, str] | None = None, version: str = VERSION) -> Line:
    return Line("a", ["vllm", "serve", "m", *arguments], environment or {}, "test", sys.executable, version)


def test_a_line_that_is_taken_is_well() -> None:
    (point,) = judge_line(line("--max-num-seqs", "8"))
    assert point.outcome is Outcome.WELL
    assert VERSION in point.told


def test_an_option_that_is_gone_is_wrong_and_told_what_does_the_same() -> None:
    points = judge_line(line("--enable-metrics"))
    assert points[0].outcome is Outcome.WRONG
    assert points[0].about == "--enable-metrics of a"
    assert points[0].remedy


def test_a_variable_that_nobody_reads_any_more_is_wrong() -> None:
    points = judge_line(line(environment={"VLLM_USE_V1": "1", "PATH": "/bin"}))
    assert [point.about for point in points if point.outcome is Outcome.WRONG] == ["VLLM_USE_V1 of a"]


def test_a_version_that_is_not_known_is_unknown() -> None:
    (point,) = judge_line(line(version=""))
    assert point.outcome is Outcome.UNKNOWN
    (point,) = judge_line(line(version="0.1.0"))  # its Python has no vLLM that could be asked
    assert point.outcome is Outcome.UNKNOWN


@pytest.mark.parametrize(
    ("command", "arguments"),
    [
        (["/venv/bin/vllm", "serve", "m", "--port", "1"], ["m", "--port", "1"]),
        (["python", "-m", "kveik.connector.serve", "m"], ["m"]),
        (["python", "-m", "vllm.entrypoints.openai.api_server", "--model", "m"], ["--model", "m"]),
        (["python", "/venv/bin/vllm", "serve", "m"], ["m"]),
        (["python", "-m", "kveik.cli.main", "sim-engine"], None),
        ([], None),
    ],
)
def test_the_arguments_of_an_engine_are_found_in_its_command(command: list[str], arguments: list[str] | None) -> None:
    assert served(command) == arguments


def seen(*command: str) -> SeenEngine:
    described = DescribedEngine("a", "http://127.0.0.1:1")
    return SeenEngine(
        described, models=(ServedModel("m", 0),), version=VERSION, command=("python", *command), environ={"A": "1"}
    )


def test_what_an_engine_runs_with_counts_more_than_the_configuration() -> None:
    configured = DescribedEngine("a", "http://127.0.0.1:1", command=("vllm", "serve", "m"))
    running = seen("-m", "kveik.connector.serve", "m", "--enable-metrics")
    fleet = PaperFleet(DescribedFleet("paper", (configured,)), FleetView((running,), (), None))
    verdict = check_options(Context("python", {}, fleet=fleet))
    assert verdict.evidence == ["a: its process"]
    assert verdict.outcome is Outcome.WRONG


def test_before_the_start_the_configuration_is_judged() -> None:
    configured = DescribedEngine("a", "http://127.0.0.1:1", command=("vllm", "serve", "m", "--nonsense"))
    gone = SeenEngine(configured, trouble="refused")
    fleet = PaperFleet(DescribedFleet("paper", (configured,)), FleetView((gone,), (), None))
    verdict = check_options(Context("python", {}, fleet=fleet))
    assert verdict.evidence == ["a: the configuration"]


def test_an_engine_whose_line_nobody_sees_is_unknown() -> None:
    assert check_options(Context("python", {}, fleet=Fleet(DescribedFleet("flags")))).outcome is Outcome.UNKNOWN


@pytest.fixture(scope="module")
def ascend_python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An interpreter with a vLLM of our version and a vllm-ascend, by their metadata."""
    venv = tmp_path_factory.mktemp("engine")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(venv)], check=True)
    (site,) = venv.glob("lib/python*/site-packages")
    for name, version in (("vllm", VERSION), ("vllm_ascend", "0.30.0rc2")):
        info = site / f"{name}-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    return venv / "bin" / "python"


def test_variables_are_judged_by_the_vllm_ascend_that_is_installed(ascend_python: Path) -> None:
    guide = {"DS_WORKER_ADDR": "10.0.0.1:18481"}
    with_it = judge_line(Line("a", ["vllm", "serve", "m"], guide, "test", str(ascend_python), ""))
    assert [point.about for point in with_it if point.outcome is Outcome.WRONG] == ["DS_WORKER_ADDR of a"]
    assert "YR_CONFIG_PATH" in with_it[0].remedy
    without = judge_line(line(environment=guide))
    assert [point.outcome for point in without] == [Outcome.WELL]


def test_the_guides_metrics_options_are_told_what_to_do_instead(ascend_python: Path) -> None:
    command = ["vllm", "serve", "m", "--enable-metrics", "--metrics-port", "8001"]
    points = judge_line(Line("a", command, {}, "test", str(ascend_python), ""))
    assert [point.about for point in points] == ["--enable-metrics of a", "--metrics-port of a"]
    assert all(point.remedy and point.source for point in points)

"""Command lines of engines are judged by what the installed vLLM takes."""

import sys
from collections.abc import Mapping

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

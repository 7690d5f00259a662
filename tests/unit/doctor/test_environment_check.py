"""``kveik doctor environment`` on environments of this machine, of a process, and of text."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import kveik
from kveik.doctor.check import Context, Outcome, Verdict
from kveik.doctor.environment_check import check_environment
from kveik.doctor.fleet_described import DescribedEngine, DescribedFleet
from kveik.doctor.fleet_view import FleetView, SeenEngine
from kveik.errors import DoctorError
from tests.unit.doctor.paper_fleet import PaperFleet


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An interpreter with a vLLM that knows two variables, and a Yuanrong that knows no parallel copies."""
    venv = tmp_path_factory.mktemp("engine")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(venv)], check=True)
    (site,) = venv.glob("lib/python*/site-packages")
    for name, version in (("vllm", "0.99.0"), ("openyuanrong_datasystem", "0.9.9")):
        info = site / f"{name}-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    (site / "vllm").mkdir()
    (site / "vllm" / "envs.py").write_text("environment_variables = {'VLLM_NEW_THING': 1, 'VLLM_PLUGINS': 2}\n")
    (site / "yr").mkdir()
    (site / "yr" / "libdatasystem.so").write_bytes(b"\0DS_H2D_MEMCPY_POLICY\0")
    return venv / "bin" / "python"


def looked(environ: dict[str, str], python: Path | str = "/nonexistent", **more: str | int) -> Verdict:
    return check_environment(Context(str(python), environ, **more))  # type: ignore[arg-type]


def about(verdict: Verdict, outcome: Outcome) -> list[str]:
    return [point.about for point in verdict.points if point.outcome is outcome]


def test_the_installed_vllm_s_own_table_counts_not_the_one_that_kveik_carries(python: Path) -> None:
    verdict = looked({"VLLM_NEW_THING": "1", "VLLM_CACHE_ROOT": "/x", "VLLM_PLUGINS": "kveik"}, python)
    assert about(verdict, Outcome.UNKNOWN) == ["VLLM_CACHE_ROOT"]
    assert "vLLM 0.99.0 does not know it" in verdict.points[0].told


def test_a_library_that_does_not_have_the_name_does_not_read_it_whatever_its_version(python: Path) -> None:
    environ = {"DS_H2D_PARALLEL_WORKER_NUM": "4", "DS_H2D_MEMCPY_POLICY": "direct"}
    verdict = looked(environ, python)
    assert about(verdict, Outcome.WRONG) == ["DS_H2D_PARALLEL_WORKER_NUM"]
    assert "the installed library does not know the name" in verdict.points[0].told
    assert about(verdict, Outcome.WELL) == ["DS_H2D_MEMCPY_POLICY"]


def test_without_an_interpreter_it_judges_without_versions() -> None:
    verdict = looked({"DS_WORKER_ADDR": "192.0.2.7:1"})
    assert about(verdict, Outcome.BEWARE) == ["DS_WORKER_ADDR"]
    assert "read by unknown versions" in verdict.evidence


def test_kveik_s_own_variables_are_known_by_its_settings() -> None:
    verdict = looked({"KVEIK_ROUTER_PORT": "8100", "KVEIK_ROUTER_PROT": "8100", "KVEIK_API_KEY": "sk-x"})
    assert about(verdict, Outcome.WRONG) == ["KVEIK_ROUTER_PROT"]
    assert about(verdict, Outcome.UNKNOWN) == []


def test_text_may_hold_versions_beside_variables() -> None:
    verdict = looked({}, pasted="DS_WORKER_ADDR=192.0.2.7:1\nvllm-ascend==0.30.0rc1\n")
    assert about(verdict, Outcome.WRONG) == ["DS_WORKER_ADDR"]
    assert verdict.evidence[0] == "what was given"


def test_a_process_is_looked_at_by_its_number() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", "input()"], env={**os.environ, "VLLM_USE_V1": "1"}, stdin=subprocess.PIPE
    ) as process:
        verdict = looked({}, pid=process.pid)
        process.communicate(b"\n")
    assert about(verdict, Outcome.WRONG) == ["VLLM_USE_V1"]
    with pytest.raises(DoctorError, match="4194999"):
        looked({}, pid=4194999)


def test_of_a_fleet_the_engines_here_are_looked_at_as_they_were_or_will_be_started() -> None:
    url = "http://127.0.0.1:1"
    configured = DescribedEngine("a", url, environment={"VLLM_USE_V1": "1"})
    running = SeenEngine(DescribedEngine("b", url), environ={"HCCL_DETERMINISTIC": "1"})
    view = FleetView((SeenEngine(configured, trouble="refused"), running), (), None)
    fleet = PaperFleet(DescribedFleet("paper", (configured,)), view)
    verdict = check_environment(Context("/nonexistent", {"PATH": "/bin"}, fleet=fleet))
    assert about(verdict, Outcome.WRONG) == ["VLLM_USE_V1 of a", "HCCL_DETERMINISTIC of b"]
    assert "the environment of b" in verdict.evidence
    own = check_environment(Context("/nonexistent", {"VLLM_USE_V1": "1"}, pid=os.getpid(), fleet=fleet))
    assert f"the environment of process {os.getpid()}" in own.evidence


def test_values_of_variables_that_nobody_asked_about_are_not_repeated() -> None:
    verdict = looked({"VLLM_API_KEY": "sk-verysecret1", "VLLM_SECRET_PLUGIN": "verysecret2", "HF_TOKEN": "verysecret3"})
    assert "verysecret" not in str(verdict)


def test_every_variable_that_kveik_s_own_code_names_is_known() -> None:
    sources = Path(kveik.__file__).parent.rglob("*.py")
    named = {
        name for file in sources for name in re.findall(r'"(KVEIK_[A-Z_]+[A-Z])"', file.read_text(encoding="utf8"))
    }
    assert "KVEIK_ADMISSION_TOKEN" in named
    verdict = looked(dict.fromkeys(named, "x"))
    assert about(verdict, Outcome.UNKNOWN) + about(verdict, Outcome.WRONG) == []

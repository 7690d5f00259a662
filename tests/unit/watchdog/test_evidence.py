import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from kveik.watchdog.evidence import LOG_BYTES_MAX, EvidenceFolder, Incident
from kveik.watchdog.verdict import Condition, Counters, Probed, Sample, Verdict
from tests.agents import wait_until

HUNG = Verdict(Condition.HUNG, 5.0, "3 requests wait and no token moved for 12.0 s")
AT_S = 1_790_000_000.0

STUCK = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; print('child', flush=True); time.sleep(600)"])
def waits_for_a_rank_that_is_gone():
    print("stuck", flush=True)
    time.sleep(600)
waits_for_a_rank_that_is_gone()
"""


@pytest.fixture
def stuck() -> Iterator[subprocess.Popen[str]]:
    """An engine that stands still, with a child, a secret in its environment and one on its command line."""
    environment = {**os.environ, "VLLM_API_KEY": "hunter2", "VLLM_PORT": "8001", "MY_CITY": "Bonn"}
    command = [sys.executable, "-c", STUCK, "--api-key", "hunter2"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, env=environment, text=True, start_new_session=True)
    assert process.stdout is not None
    assert {process.stdout.readline(), process.stdout.readline()} == {"stuck\n", "child\n"}
    yield process
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    process.stdout.close()


def incident(**given: object) -> Incident:
    words = {"engine": "engine-1", "node": "n0", "url": "http://127.0.0.1:8001", "verdict": HUNG, "at_s": AT_S}
    return Incident(**{**words, **given})  # type: ignore[arg-type]


def saved(folder: Path, **given: object) -> dict[str, str]:
    """The files of a new bundle and what is in them."""
    bundle = EvidenceFolder(folder / "evidence", bundles_max=5).save(incident(**given))
    return {file.name: file.read_text() for file in bundle.iterdir()}


def test_the_summary_says_in_plain_words_what_happened(tmp_path: Path) -> None:
    summary = saved(tmp_path, history=["restarted 20 minutes ago: hung"])["summary.txt"]
    assert "Engine engine-1 on node n0 at http://127.0.0.1:8001\nwas hung at 2026-09-2" in summary
    assert "Why: 3 requests wait and no token moved for 12.0 s." in summary
    assert "restarted 20 minutes ago: hung" in summary
    assert "log.txt: the last lines of its log" in summary


def test_the_process_tree_is_there_with_children(tmp_path: Path, stuck: "subprocess.Popen[str]") -> None:
    files = saved(tmp_path, pids=(stuck.pid,))
    (child,) = psutil.Process(stuck.pid).children()
    assert f"\n{stuck.pid} " in files["processes.txt"]
    assert f"\n{child.pid} " in files["processes.txt"]
    assert {f"stacks-{stuck.pid}.txt", f"stacks-{child.pid}.txt"} <= files.keys()
    assert "sleeping" in files["processes.txt"]


def test_secrets_of_the_engine_are_nowhere(tmp_path: Path, stuck: "subprocess.Popen[str]") -> None:
    (tmp_path / "engine.log").write_text("started with --api-key hunter2\nAuthorization: Bearer hunter2hunter2\n")
    files = saved(
        tmp_path, pids=(stuck.pid,), log=str(tmp_path / "engine.log"), metrics=lambda: 'x{token="hunter2"} 1\n',
        history=["password: hunter2"],
    )  # fmt: skip
    assert [name for name, text in files.items() if "hunter2" in text] == []
    assert "VLLM_PORT=8001" in files["processes.txt"], "what says how it was started stays"
    assert "Bonn" not in files["processes.txt"], "other variables are nobody's business"


def test_only_this_user_can_read_it(tmp_path: Path) -> None:
    bundle = EvidenceFolder(tmp_path / "evidence", bundles_max=5).save(incident())
    assert {path.stat().st_mode & 0o077 for path in (bundle.parent, bundle, *bundle.iterdir())} == {0}


def test_python_stacks_are_there_where_py_spy_is_installed(tmp_path: Path, stuck: "subprocess.Popen[str]") -> None:
    evidence = EvidenceFolder(tmp_path / "evidence", bundles_max=5)
    bundle = evidence.save(incident(pids=(stuck.pid,)))
    text = (bundle / f"stacks-{stuck.pid}.txt").read_text()
    if evidence._py_spy and "Permission" not in text and "Error" not in text:
        assert "waits_for_a_rank_that_is_gone" in text
    assert str(stuck.pid) in text, "where the kernel holds it is always there"


def test_a_stopped_process_stays_stopped(tmp_path: Path, stuck: "subprocess.Popen[str]") -> None:
    stuck.send_signal(signal.SIGSTOP)
    process = psutil.Process(stuck.pid)
    wait_until(lambda: process.status() == psutil.STATUS_STOPPED, "it is stopped")
    saved(tmp_path, pids=(stuck.pid,))
    assert process.status() == psutil.STATUS_STOPPED


def fake_tool(folder: Path, name: str, script: str) -> Path:
    folder.mkdir(exist_ok=True)
    tool = folder / name
    tool.write_text(f"#!/bin/sh\n{script}\n")
    tool.chmod(0o755)
    return tool


def test_a_py_spy_that_is_not_allowed_is_said_and_the_rest_is_there(
    tmp_path: Path, stuck: "subprocess.Popen[str]"
) -> None:
    refusing = fake_tool(tmp_path / "bin", "py-spy", "echo 'Permission Denied: Try running again'; exit 1")
    evidence = EvidenceFolder(tmp_path / "evidence", bundles_max=5, py_spy=str(refusing))
    text = (evidence.save(incident(pids=(stuck.pid,))) / f"stacks-{stuck.pid}.txt").read_text()
    assert "Permission Denied" in text
    assert "waits in" in text


def test_a_py_spy_that_hangs_is_not_waited_for(
    tmp_path: Path, stuck: "subprocess.Popen[str]", monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kveik.watchdog.evidence.STACK_S", 0.2)
    hanging = fake_tool(tmp_path / "bin", "py-spy", "exec sleep 600")
    evidence = EvidenceFolder(tmp_path / "evidence", bundles_max=5, py_spy=str(hanging))
    text = (evidence.save(incident(pids=(stuck.pid,))) / f"stacks-{stuck.pid}.txt").read_text()
    assert "did not end within 0.2 s" in text


def test_what_the_devices_tool_says_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_tool(tmp_path / "bin", "npu-smi", 'echo "NPU 0 AICore 0 %: $1"')
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:{os.environ['PATH']}")
    assert "NPU 0 AICore 0 %: info" in saved(tmp_path)["device.txt"]


def test_the_end_of_a_long_log_is_kept_in_whole_lines(tmp_path: Path) -> None:
    log = tmp_path / "engine.log"
    log.write_text("".join(f"line {number}\n" for number in range(60_000)))
    text = saved(tmp_path, log=str(log))["log.txt"]
    assert text.endswith("line 59999\n")
    assert text.startswith("line ")
    assert len(text) <= LOG_BYTES_MAX


@pytest.mark.parametrize(("log", "said"), [("", "not on this machine"), ("/no/such/file.log", "cannot read")])
def test_a_log_that_is_not_there_is_said(tmp_path: Path, log: str, said: str) -> None:
    assert said in saved(tmp_path, log=log)["log.txt"]


def test_metrics_and_samples_are_there(tmp_path: Path) -> None:
    counters = Counters(prompt_tokens=5.0, running=1)
    samples = [Sample(1.0, None), Sample(2.0, Probed.LATE, counters=counters)]
    files = saved(tmp_path, samples=samples, metrics=lambda: "vllm:num_requests_waiting 3.0\n")
    assert files["metrics.txt"] == "vllm:num_requests_waiting 3.0\n"
    late = json.loads(files["samples.json"])[1]
    assert (late["probe"], late["counters"]["prompt_tokens"]) == ("late", 5.0)


def test_metrics_that_do_not_answer_are_said(tmp_path: Path) -> None:
    assert "did not answer" in saved(tmp_path)["metrics.txt"]


def test_processes_that_are_gone_are_no_trouble(tmp_path: Path) -> None:
    assert "Its processes: 0" in saved(tmp_path, pids=(2**22 + 1,))["summary.txt"]


def test_the_oldest_bundles_go_and_several_of_one_second_are_kept_apart(tmp_path: Path) -> None:
    evidence = EvidenceFolder(tmp_path / "evidence", bundles_max=3)
    names = [evidence.save(incident(at_s=AT_S + number)).name for number in range(4)]
    names.append(evidence.save(incident(at_s=AT_S + 3)).name)
    assert names[-1] == f"{names[-2]}-2"
    assert [path.name for path in evidence.bundles()] == names[-3:]


def test_what_a_killed_watchdog_left_half_done_is_no_bundle_and_goes(tmp_path: Path) -> None:
    evidence = EvidenceFolder(tmp_path / "evidence", bundles_max=3)
    half = evidence.root / ".x.unfinished"
    half.mkdir(parents=True)
    assert evidence.bundles() == []
    evidence.save(incident())
    assert not half.exists()


def test_a_name_that_is_no_file_name_stays_within_the_folder(tmp_path: Path) -> None:
    evidence = EvidenceFolder(tmp_path / "evidence", bundles_max=3)
    bundle = evidence.save(incident(engine="../10.0.0.7:8000"))
    assert bundle.parent == evidence.root
    assert evidence.bundles() == [bundle]


def test_more_can_be_put_into_a_bundle(tmp_path: Path) -> None:
    evidence = EvidenceFolder(tmp_path / "evidence", bundles_max=3)
    bundle = evidence.save(incident())
    evidence.add(bundle.name, "restart.txt", "docker said: ok, token=hunter2")
    assert (bundle / "restart.txt").read_text() == "docker said: ok, token=***"
    evidence.add("", "restart.txt", "nowhere")
    evidence.add("gone", "restart.txt", "nowhere")
    assert len(evidence.bundles()) == 1


def test_a_folder_that_cannot_be_made_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match=r"file"):
        EvidenceFolder(tmp_path / "file" / "evidence", bundles_max=3).save(incident())

import os
import resource
import subprocess
import sys
import time
from pathlib import Path

from benchmarks.machine import ROOT, ForeignLoad, describe, own_seconds, wait_quiet

SPIN = "import time, sys\nend = time.monotonic() + 0.8\nwhile time.monotonic() < end: pass"


def test_the_machine_is_described_with_the_versions_that_the_engines_have() -> None:
    machine = describe(sys.executable)
    assert machine.processor
    assert machine.cores == len(os.sched_getaffinity(0))
    assert machine.memory_gib > 0
    assert {"kveik", "python"} <= machine.versions.keys()


def test_what_our_own_children_compute_counts_as_ours_also_after_their_end() -> None:
    before_s, children_before_s = own_seconds(), children_seconds()
    subprocess.run([sys.executable, "-c", SPIN], check=True)
    spent_s = children_seconds() - children_before_s
    assert spent_s > 0.1
    assert own_seconds() - before_s >= spent_s - 0.05  # the kernel rounds both to its ticks


def children_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def test_what_a_process_that_is_not_ours_computes_is_foreign(tmp_path: Path) -> None:
    started = tmp_path / "started"
    script = f"import pathlib\npathlib.Path({str(started)!r}).touch()\n{SPIN}"
    # Started by a shell that ends at once, so that it is nobody's child here.
    subprocess.run(["sh", "-c", '"$0" -c "$1" &', sys.executable, script], check=True, stdin=subprocess.DEVNULL)
    while not started.exists():
        time.sleep(0.01)
    load = ForeignLoad()
    time.sleep(0.5)
    assert load.cores() > 0.3


def test_what_a_benchmark_leaves_in_the_background_counts_as_its_own(tmp_path: Path) -> None:
    benchmark = tmp_path / "one.py"
    benchmark.write_text(
        "import subprocess, sys, time\n"
        "from benchmarks.machine import own_seconds\n"
        f"background = ['sh', '-c', '\"$0\" -c \"$1\" &', sys.executable, {SPIN!r}]\n"
        "before_s = own_seconds()\n"
        "subprocess.run(background, check=True, stdin=subprocess.DEVNULL)\n"
        "until_s = time.monotonic() + 60\n"
        "while own_seconds() - before_s < 0.3:\n"
        "    assert time.monotonic() < until_s, own_seconds() - before_s\n"
        "    time.sleep(0.05)\n"
        "sys.exit(7)\n",
        encoding="utf8",
    )
    run = (
        "import sys; from benchmarks.machine import ROOT, run_reaping\n"
        f"sys.exit(run_reaping([sys.executable, {str(benchmark)!r}], ROOT))"
    )
    done = subprocess.run(
        [sys.executable, "-c", run], cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, check=False
    )
    assert done.returncode == 7


def test_waiting_for_a_quiet_machine_ends() -> None:
    began_s = time.monotonic()
    wait_quiet(patience_s=0.0)
    assert time.monotonic() - began_s < 10

"""A fleet that is measured ends with whoever measures it, however that ends. Engines are simulated."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from kveik.engine.group import living_members_of
from tests.agents import wait_until

pytestmark = pytest.mark.slow
PATIENCE_S = 90.0

MEASURE = """
import json, sys, time
from pathlib import Path
from kveik.bench.fleet import FleetPlan, RunningFleet
plan = FleetPlan(model=Path(sys.argv[1]), engine_python=sys.executable, folder=Path(sys.argv[2]), simulated=True)
with RunningFleet(plan, print) as fleet:
    print("pids", json.dumps([one.pid for one in fleet.control.status().processes]), flush=True)
    sys.stdin.readline()
"""


def measured(folder: Path) -> "tuple[subprocess.Popen[str], list[int]]":
    """A process that has such a fleet, and the groups of its parts."""
    model = folder / "model"
    model.mkdir()
    shape = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2}
    (model / "config.json").write_text(json.dumps({**shape, "head_dim": 16, "vocab_size": 1000}))
    command = [sys.executable, "-c", MEASURE, str(model), str(folder / "fleet")]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, process_group=0)
    assert process.stdout
    for line in process.stdout:
        if line.startswith("pids "):
            return process, json.loads(line[5:])
    raise AssertionError(f"it ended with {process.wait()}")


def gone(pids: list[int]) -> bool:
    return not any(living_members_of(pid) for pid in pids)


def test_it_is_taken_down_after_kill_9(tmp_path: Path) -> None:
    process, pids = measured(tmp_path)
    assert len(pids) == 5
    assert not gone(pids)

    os.kill(process.pid, signal.SIGKILL)

    process.communicate()
    wait_until(lambda: gone(pids), "all parts have ended", PATIENCE_S)


def test_after_its_end_nobody_waits_to_take_it_down(tmp_path: Path) -> None:
    process, pids = measured(tmp_path)

    process.communicate("\n", timeout=PATIENCE_S)

    assert process.returncode == 0
    assert gone(pids)
    wait_until(lambda: not living_members_of(process.pid), "the last will is forgotten", PATIENCE_S)

"""The benchmark of rolls, over simulated engines: it measures what it says, on a fleet that ``kveik up`` starts."""

import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from benchmarks.fleet_roll import CUT, FAILED, POOL, SECONDS, STEPS, TTFT, Fleet
from benchmarks.machine import ROOT
from benchmarks.result import Result, side, sides, verdicts
from kveik.launch.fleet_spec import read_fleet
from kveik.launch.roll_plan import Stage


@pytest.mark.long
def test_a_roll_is_measured_from_a_fleet_that_is_up_to_one_that_is_down_again(tmp_path: Path) -> None:
    result_file, picture = tmp_path / "result.json", tmp_path / "picture.png"
    command = [sys.executable, "-m", "benchmarks.fleet_roll", "--simulated", "--engine-python", sys.executable]
    command += ["--json", str(result_file), "--plot", str(picture)]
    done = subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    result = msgspec.json.decode(result_file.read_bytes(), type=Result)
    assert [(verdict.claim.group, verdict.holds) for verdict in verdicts(result)] == [
        (FAILED, True),
        (CUT, True),
        (POOL, True),
    ]
    assert side(result.group(POOL), "kveik roll").low == 2, "one engine was out, and it was seen"
    assert sides(result.group(STEPS)) == [stage.value for stage in Stage]
    assert side(result.group(STEPS), "restart").count == 3
    assert set(sides(result.group(TTFT))) == {"before", "during", "after"}
    assert side(result.group(SECONDS), "kveik roll").low > 0
    assert picture.stat().st_size > 1000


def test_the_fleet_that_is_measured_is_one_that_kveik_understands(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path, 'model = "/models/m"\nmode = "eager"\n')
    fleet.describe()
    spec = read_fleet(fleet.config, {})
    assert [engine.name for engine in spec.engines] == ["engine-1", "engine-2", "engine-3"]
    assert spec.settings.ready_min == 2

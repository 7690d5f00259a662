import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from kveik.clock import FakeClock
from kveik.errors import WatchdogError
from kveik.watchdog.healing import Healing, Stage
from kveik.watchdog.state_file import Remembered, StateFile
from kveik.watchdog.verdict import Condition

HEALING = Healing(
    stage=Stage.RESTARTING,
    since_s=990.0,
    cause=Condition.HUNG,
    why="hung",
    incident="i",
    restarts=(980.0, 990.0),
    pid=7,
)
REMEMBERED = Remembered(healing=HEALING, condition=Condition.STARTING, since_s=991.0, why="it loads")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "node" / "watchdog.json"


def written(path: Path, clock: FakeClock) -> None:
    file = StateFile(path, clock)
    file.put("engine-1", REMEMBERED)
    file.close()


def test_what_was_put_is_there_for_the_next_watchdog(path: Path) -> None:
    clock = FakeClock()
    written(path, clock)
    file = StateFile(path, clock)
    assert file.get("engine-1") == REMEMBERED
    assert file.get("engine-2") is None
    assert REMEMBERED.verdict.why == "it loads"
    file.close()


class Rebooted(FakeClock):
    """Wall time goes on, monotonic time begins anew."""

    def wall(self) -> float:
        return 1060.0


def test_times_are_carried_over_a_reboot(path: Path) -> None:
    written(path, FakeClock(1000.0))
    file = StateFile(path, Rebooted(5.0))  # 60 s later
    found = file.get("engine-1")
    file.close()
    assert found is not None
    assert found.since_s == pytest.approx(5.0 - 69.0)
    assert found.healing.since_s == pytest.approx(5.0 - 70.0)
    assert found.healing.restarts == pytest.approx((5.0 - 80.0, 5.0 - 70.0))


def test_a_wall_clock_that_ran_backwards_makes_nothing_younger_than_now(path: Path) -> None:
    written(path, FakeClock(1000.0))
    file = StateFile(path, FakeClock(400.0))
    found = file.get("engine-1")
    file.close()
    assert found is not None
    assert found.healing.since_s <= 400.0


@pytest.mark.parametrize("text", ["", "nonsense", '{"format": "kveik watchdog 9", "engines": {}}', "[]"])
def test_a_file_that_is_not_understood_is_set_aside(path: Path, text: str, caplog: pytest.LogCaptureFixture) -> None:
    path.parent.mkdir(mode=0o700)
    path.write_text(text)
    file = StateFile(path)
    assert file.get("engine-1") is None
    assert path.with_name("watchdog.json.not-understood").read_text() == text
    assert "is not understood" in caplog.text
    file.put("engine-1", REMEMBERED)
    file.close()
    assert msgspec.json.decode(path.read_bytes())["format"] == "kveik watchdog 1"


def test_only_one_watchdog_has_the_file_and_a_killed_one_lets_go(path: Path) -> None:
    code = f"""
import os, pathlib, signal
from kveik.watchdog.state_file import StateFile
file = StateFile(pathlib.Path({str(path)!r}))
print("mine", flush=True)
signal.pause()
"""
    other = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert other.stdout is not None
    assert other.stdout.readline() == "mine\n"
    with pytest.raises(WatchdogError, match="another watchdog uses"):
        StateFile(path)
    other.kill()
    other.wait()
    other.stdout.close()
    StateFile(path).close()


def test_engines_that_are_no_longer_there_are_forgotten(path: Path) -> None:
    file = StateFile(path)
    file.put("engine-1", REMEMBERED)
    file.put("engine-2", REMEMBERED)
    file.forget_others(frozenset({"engine-2"}))
    file.close()
    assert StateFile(path).get("engine-1") is None


def test_a_file_that_cannot_be_written_is_said_once_and_stops_nothing(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = StateFile(path)
    path.with_name(".watchdog.json.tmp").mkdir()
    file.put("engine-1", REMEMBERED)
    file.put("engine-1", REMEMBERED)
    assert file.get("engine-1") == REMEMBERED
    assert caplog.text.count("cannot write") == 1
    file.close()


def test_only_this_user_can_read_it(path: Path) -> None:
    written(path, FakeClock())
    assert {file.stat().st_mode & 0o077 for file in path.parent.iterdir()} == {0}


def test_a_folder_that_others_may_change_is_refused(path: Path) -> None:
    path.parent.mkdir()
    path.parent.chmod(0o777)
    with pytest.raises(WatchdogError, match=r"fleet\.state_folder"):
        StateFile(path)

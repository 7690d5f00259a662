"""Router, watchdog and `kveik status` as processes: what one reports the next shows, and an exit code says."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.agents import wait_until
from tests.routers import RouterProcess, SimProcess

PATIENCE_S = 90.0


class Rig:
    """A router without engines, one engine beside it, and the watchdog that announces it."""

    def __init__(self, folder: Path, sim: SimProcess, router: RouterProcess) -> None:
        self.sim, self.router = sim, router
        self._home = folder / "home"
        self._home.mkdir()
        self._environment = {**os.environ, "KVEIK_FLEET_STATE_FOLDER": str(folder / "state"), "COLUMNS": "200"}
        self.log = folder / "watchdog.log"
        with self.log.open("wb") as log:
            self.watchdog = subprocess.Popen(
                [sys.executable, "-m", "kveik.cli.main", "watchdog", "--engine", sim.url, "--routers", router.url,
                 "--probe-period-s", "0.3", "--probe-deadline-s", "0.5", "--restart", "false"],
                cwd=self._home, env=self._environment, stdout=log, stderr=log,
            )  # fmt: skip

    def status(self, *flags: str) -> tuple[int, str]:
        """Exit code and output of the command."""
        command = [sys.executable, "-m", "kveik.cli.main", "status", "--router", self.router.url, *flags]
        done = subprocess.run(
            command, cwd=self._home, env=self._environment, capture_output=True, text=True, check=False
        )
        return done.returncode, done.stdout + done.stderr

    def becomes(self, code: int, *texts: str) -> str:
        """Wait until the command ends with that code and says all of that; its output."""
        last = (0, "")

        def is_so() -> bool:
            nonlocal last
            last = self.status()
            return last[0] == code and all(text in last[1] for text in texts)

        try:
            wait_until(is_so, f"kveik status exits with {code}", PATIENCE_S)
        except AssertionError as error:
            raise AssertionError(
                f"{error}; the last was {last}; the watchdog: {self.log.read_text()[-2000:]}"
            ) from None
        return last[1]


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    with SimProcess(tmp_path) as sim, RouterProcess(tmp_path) as router:
        rig = Rig(tmp_path, sim, router)
        try:
            yield rig
        finally:
            rig.watchdog.kill()
            rig.watchdog.wait(20)


@pytest.mark.long
def test_the_exit_code_follows_the_fleet_from_well_to_dead_to_silent_to_away(rig: Rig) -> None:
    well = rig.becomes(0, "1 of 1 engines ready", "all is well", "0 %")
    assert "simulated" in well

    rig.sim.kill()
    rig.becomes(1, "not well", "its watchdog calls it dead")
    rig.sim.start()
    rig.becomes(0, "all is well")

    rig.watchdog.kill()
    rig.becomes(1, "has not reported for")
    document = json.loads(rig.status("--json")[1])
    assert document["fleet"]["nodes"][0]["silent"] is True
    assert document["fleet"]["totals"]["ready"] == 1, "the engine serves without its watchdog"

    rig.router.kill()
    rig.becomes(3, "no router says how the fleet is")

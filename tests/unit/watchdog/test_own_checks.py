"""Checks of this machine that are made beside the watch: when, and what becomes of what they print."""

import json
import sys
from pathlib import Path

import pytest

from kveik.clock import FakeClock
from kveik.fleet.report import ChecksReport, FaultReport
from kveik.watchdog.own_checks import SETTLED_S, OwnChecks, made, read
from tests.agents import wait_until

WELL = {"outcome": "well", "about": "arena", "told": "fits", "remedy": ""}
BEWARE = {"outcome": "beware", "about": "/dev/shm", "told": "is small", "remedy": "--shm-size"}
WRONG = {"outcome": "wrong", "about": "HCCL_IF_IP", "told": "no card has it", "remedy": "ip -brief address"}
ANSWERS = [{"check": "memory", "points": [WELL, BEWARE]}, {"check": "addresses", "points": [WRONG]}]


def printing(text: str, folder: Path, code: int = 1) -> list[str]:
    """A command that counts its runs, prints, and ends with that code."""
    script = f"open({str(folder / 'runs')!r}, 'a').write('x'); print({text!r}); raise SystemExit({code})"
    return [sys.executable, "-c", script]


def runs(folder: Path) -> int:
    file = folder / "runs"
    return len(file.read_text()) if file.exists() else 0


def test_what_is_well_is_counted_and_what_is_not_is_told_the_worst_first() -> None:
    report = read(ANSWERS, 7.0)

    assert (report.at_s, report.checks, report.trouble) == (7.0, 2, "")
    assert report.faults == (
        FaultReport(
            check="addresses", outcome="wrong", about="HCCL_IF_IP", told="no card has it", remedy="ip -brief address"
        ),
        FaultReport(check="memory", outcome="beware", about="/dev/shm", told="is small", remedy="--shm-size"),
    )


@pytest.mark.parametrize(
    ("command", "trouble"),
    [
        (["/nowhere/kveik"], "No such file"),
        ([sys.executable, "-c", "raise SystemExit('kveik doctor: there is no kveik.toml')"], "there is no kveik.toml"),
        ([sys.executable, "-c", "print('{}')"], ""),
        ([sys.executable, "-c", "print('[{}]')"], "ended with 0"),
    ],
)
def test_a_command_that_does_not_answer_is_no_answer(command: list[str], trouble: str) -> None:
    report = made(command)

    assert report.faults == ()
    assert trouble in report.trouble
    assert bool(report.trouble) == bool(trouble)


def test_they_wait_until_engines_have_started_and_come_again(tmp_path: Path) -> None:
    clock = FakeClock()
    checks = OwnChecks(printing(json.dumps(ANSWERS), tmp_path), 600.0, clock)
    said: list[ChecksReport] = []

    def answered() -> bool:
        report = checks(starting=False)
        said.extend([report] if report is not None and report not in said else [])
        return report is not None

    assert checks(starting=False) is None
    clock.advance(SETTLED_S - 1)
    assert checks(starting=True) is None
    clock.advance(SETTLED_S)
    assert checks(starting=False) is None, "the last engine has just started"
    assert runs(tmp_path) == 0
    clock.advance(SETTLED_S)
    wait_until(answered, "the checks have been made", 60)
    assert runs(tmp_path) == 1
    assert said[-1].checks == 2

    clock.advance(599.0)
    checks(starting=False)
    assert runs(tmp_path) == 1
    clock.advance(2.0)
    wait_until(lambda: answered() and runs(tmp_path) == 2, "they are made again", 60)


def test_without_a_command_or_a_period_nothing_is_looked_at(tmp_path: Path) -> None:
    clock = FakeClock()
    for command, period_s in (([], 600.0), (printing("[]", tmp_path), 0.0)):
        checks = OwnChecks(command, period_s, clock)
        for _ in range(3):
            assert checks(starting=False) is None
            clock.advance(SETTLED_S + 1000)
    assert runs(tmp_path) == 0

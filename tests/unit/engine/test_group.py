"""Process groups, as the kernel shows them."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import msgspec
import pytest

from kveik.engine.group import ProcessId, identity_of, kill_group, living_members, living_members_of, wait_group_gone
from tests.agents import wait_until

SLEEP = "import time; time.sleep(600)"
#: Starts a child in a group of its own, prints its number and sleeps.
LEAVER = f"""
import os, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", {SLEEP!r}], process_group=0)
print(child.pid, flush=True)
time.sleep(600)
"""


def start(code: str, *, session: bool = False) -> "subprocess.Popen[bytes]":
    return subprocess.Popen(
        [sys.executable, "-c", code],
        start_new_session=session,
        process_group=None if session else 0,
        stdout=subprocess.PIPE,
    )


@pytest.fixture
def sleeper() -> Iterator["subprocess.Popen[bytes]"]:
    process = start(SLEEP)
    yield process
    process.kill()
    process.wait()


def test_a_process_is_known_by_number_and_start(sleeper: "subprocess.Popen[bytes]") -> None:
    identity = identity_of(sleeper.pid)
    assert identity is not None
    assert identity == identity_of(sleeper.pid)
    assert identity.alive
    assert not identity.replaced
    assert msgspec.json.decode(msgspec.json.encode(identity), type=ProcessId) == identity


def test_a_process_that_ended_is_not_alive_even_before_it_was_waited_for(sleeper: "subprocess.Popen[bytes]") -> None:
    identity = identity_of(sleeper.pid)
    assert identity is not None
    sleeper.kill()
    wait_until(lambda: not identity.alive, "it ended")
    assert identity_of(sleeper.pid) == identity
    assert not identity.replaced
    sleeper.wait()
    assert identity_of(sleeper.pid) is None
    assert not identity.alive


def test_another_process_with_its_number_is_not_it() -> None:
    mine = identity_of(os.getpid())
    assert mine is not None
    for other in (
        msgspec.structs.replace(mine, started_ticks=mine.started_ticks - 1),
        msgspec.structs.replace(mine, boot="another boot"),
    ):
        assert not other.alive
        assert other.replaced


@pytest.mark.parametrize("session", [True, False])
def test_what_a_member_started_in_another_group_is_found_and_killed(session: bool) -> None:
    leader = start(LEAVER, session=session)
    assert leader.stdout is not None
    child = int(leader.stdout.readline())
    assert sorted(living_members_of(leader.pid)) == sorted([leader.pid, child])
    assert child in living_members()[child]
    kill_group(leader.pid)
    for group in (leader.pid, child):  # who started the child cannot be seen any more
        wait_group_gone(group, 10)
        assert living_members_of(group) == []
    assert leader.wait() == -signal.SIGKILL
    leader.stdout.close()


def test_a_group_without_processes_is_killed_without_a_word() -> None:
    process = start("pass")
    process.wait()
    assert process.stdout is not None
    process.stdout.close()
    kill_group(process.pid)
    assert living_members_of(process.pid) == []

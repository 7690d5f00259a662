"""One owner at a time, in turn or not at all, and none after its death."""

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from kveik.lock_file import owned, owned_in_turn
from tests.agents import wait_until

HOLDER = """
import sys, time
from pathlib import Path
from kveik.lock_file import owned
assert owned(Path(sys.argv[1])) is not None
print("has it", flush=True)
time.sleep(600)
"""


def test_the_second_owner_gets_nothing_until_the_first_lets_go(tmp_path: Path) -> None:
    path = tmp_path / "state.lock"
    first = owned(path)
    assert first is not None
    assert owned(path) is None
    assert owned(path, 0.1) is None
    os.close(first)
    second = owned(path)
    assert second is not None
    os.close(second)
    assert path.stat().st_mode & 0o777 == 0o600


def test_who_waits_gets_it_when_the_owner_lets_go(tmp_path: Path) -> None:
    path, got = tmp_path / "state.lock", list[int]()
    first = owned_in_turn(path)
    waiting = [
        threading.Thread(target=lambda: got.append(owned(path, 30.0) or -1)),
        threading.Thread(target=lambda: got.append(owned_in_turn(path))),
    ]
    for thread in waiting:
        thread.start()
    assert got == []
    os.close(first)
    wait_until(lambda: len(got) == 1, "one of them has it", 30)
    os.close(got[0])
    for thread in waiting:
        thread.join(30)
    assert len(got) == 2
    assert -1 not in got
    os.close(got[1])


def test_an_owner_that_is_killed_owns_nothing(tmp_path: Path) -> None:
    path = tmp_path / "state.lock"
    holder = subprocess.Popen([sys.executable, "-c", HOLDER, str(path)], stdout=subprocess.PIPE, text=True)
    with holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "has it\n"
        assert owned(path) is None
        holder.kill()
        holder.wait()
        lock = owned(path)
    assert lock is not None
    os.close(lock)


def test_no_link_is_followed(tmp_path: Path) -> None:
    (tmp_path / "state.lock").symlink_to(tmp_path / "somebody's file")
    with pytest.raises(OSError, match="symbolic links"):
        owned(tmp_path / "state.lock")
    assert not (tmp_path / "somebody's file").exists()

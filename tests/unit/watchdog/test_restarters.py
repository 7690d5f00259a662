import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from kveik.errors import RestartError, SuperviseError
from kveik.supervise.client import ControlClient
from kveik.supervise.control import Answer, ControlServer
from kveik.supervise.messages import Done, Order
from kveik.watchdog.restarters import OUTPUT_BYTES_MAX, CommandRestarter, ControlRestarter, NoRestarter
from tests.agents import wait_until


class Supervisor:
    """A control socket that notes orders."""

    def __init__(self, folder: Path) -> None:
        self.orders: list[Order] = []
        self.refusal = ""
        self.server = ControlServer(str(folder / "control.sock"), self.handle).start()
        self.client = ControlClient(str(folder / "control.sock"))

    def handle(self, order: Order) -> Answer:
        self.orders.append(order)
        if self.refusal:
            raise SuperviseError(self.refusal)
        return Done(told=f"{order.name} is restarted")


@pytest.fixture
def supervisor(tmp_path: Path) -> Iterator[Supervisor]:
    (tmp_path / "run").mkdir(mode=0o700)
    supervisor = Supervisor(tmp_path / "run")
    yield supervisor
    supervisor.server.close()


def command(code: str, deadline_s: float = 20.0) -> CommandRestarter:
    return CommandRestarter("engine-1", [sys.executable, "-c", code], deadline_s=deadline_s)


def test_the_supervisor_kills_and_starts_the_whole_group_the_head_last(supervisor: Supervisor) -> None:
    restarter = ControlRestarter(supervisor.client, ["engine-1", "engine-1-ranks"])
    assert restarter.restart("hung") == "engine-1-ranks is restarted; engine-1 is restarted"
    assert [(order.op, order.name, order.why, order.grace_s) for order in supervisor.orders] == [
        ("restart", "engine-1-ranks", "hung", 0.0),
        ("restart", "engine-1", "hung", 0.0),
    ]


def test_a_refusal_of_the_supervisor_is_told(supervisor: Supervisor) -> None:
    supervisor.refusal = "engine-1 is held: roll"
    with pytest.raises(RestartError, match="did not restart engine-1: engine-1 is held: roll"):
        ControlRestarter(supervisor.client, ["engine-1"]).restart("hung")


def test_a_supervisor_that_is_gone_is_told(tmp_path: Path) -> None:
    with pytest.raises(RestartError, match="no supervisor answers"):
        ControlRestarter(ControlClient(str(tmp_path / "none.sock")), ["engine-1"]).restart("hung")


def test_a_command_learns_the_engine_and_why_and_its_output_is_kept() -> None:
    told = command("import os; print('restarting', os.environ['KVEIK_ENGINE'], os.environ['KVEIK_WHY'])").restart(
        "hung"
    )
    assert told.endswith("ended well; it said: restarting engine-1 hung")


def test_no_shell_reads_a_command(tmp_path: Path) -> None:
    restarter = CommandRestarter("e", ["/bin/echo", f"; touch {tmp_path}/x", "$HOME"], deadline_s=20.0)
    assert restarter.restart("why").endswith(f"it said: ; touch {tmp_path}/x $HOME")
    assert not (tmp_path / "x").exists()


def test_a_command_that_fails_is_told_with_what_it_said() -> None:
    with pytest.raises(RestartError, match=r"ended with code 3; it said: no such container"):
        command("import sys; print('no such container', file=sys.stderr); sys.exit(3)").restart("hung")


def test_a_command_that_is_not_there_is_told() -> None:
    with pytest.raises(RestartError, match="cannot run /no/such/thing"):
        CommandRestarter("e", ["/no/such/thing"], deadline_s=1.0).restart("hung")


def test_a_command_that_never_ends_is_ended_with_all_its_children(tmp_path: Path) -> None:
    file = tmp_path / "pid"
    sleeper = (
        f"import subprocess, time; p = subprocess.Popen(['sleep', '600']); open({str(file)!r}, 'w').write(str(p.pid)); "
    )
    with pytest.raises(RestartError, match="did not end within 5 s"):
        command(sleeper + "print('begun', flush=True); time.sleep(600)", deadline_s=5.0).restart("hung")
    child = int(file.read_text())
    wait_until(lambda: not psutil.pid_exists(child) or psutil.Process(child).status() == "zombie", "the child is gone")


def test_of_long_output_the_end_is_kept() -> None:
    told = command(f"print('x' * {3 * OUTPUT_BYTES_MAX}); print('the end')").restart("hung")
    assert told.endswith("the end")
    assert len(told) < OUTPUT_BYTES_MAX + 500


def test_secrets_in_commands_and_output_are_hidden() -> None:
    restarter = CommandRestarter("e", ["/bin/echo", "--token", "hunter2", "password: hunter2"], deadline_s=20.0)
    assert "hunter2" not in restarter.restart("why")
    assert "hunter2" not in repr(restarter)


def test_where_nobody_restarts_that_is_said() -> None:
    restarter = NoRestarter("no command is set for it")
    assert restarter.no_restart == "no command is set for it"
    with pytest.raises(RestartError, match="no command is set for it"):
        restarter.restart("hung")

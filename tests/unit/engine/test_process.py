"""Servers that we start end with us, whatever happens."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from kveik.engine import process
from kveik.engine.process import ServerProcess, free_port, ports_listened_at
from kveik.errors import EngineStartError

#: A server with a child, as vLLM has: it writes both process ids to a file and sleeps.
FAMILY = """
import os, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print("family started", flush=True)
with open(sys.argv[1] + ".part", "w") as file:
    file.write(f"{os.getpid()} {child.pid}")
os.rename(sys.argv[1] + ".part", sys.argv[1])
time.sleep(600)
"""


def eventually(condition: Callable[[], bool], patience_s: float = 10.0) -> bool:
    until_s = time.monotonic() + patience_s
    while not condition():
        if time.monotonic() > until_s:
            return False
        time.sleep(0.01)
    return True


def alive(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def python(*arguments: str) -> list[str]:
    return [sys.executable, "-c", *arguments]


@pytest.fixture
def family(tmp_path: Path) -> Iterator[tuple[ServerProcess, list[int]]]:
    pids = tmp_path / "pids"
    with ServerProcess("family", python(FAMILY, str(pids)), os.environ, tmp_path / "log") as server:
        server.start()
        server.wait_ready(pids.exists, 10)
        yield server, [int(pid) for pid in pids.read_text().split()]


def test_stopping_ends_the_whole_group(family: tuple[ServerProcess, list[int]]) -> None:
    server, pids = family
    assert all(alive(pid) for pid in pids)
    server.stop()
    assert not any(alive(pid) for pid in pids)
    assert not server.running


def test_killing_ends_the_whole_group_at_once(family: tuple[ServerProcess, list[int]]) -> None:
    server, pids = family
    server.kill()
    assert not any(alive(pid) for pid in pids)


def test_killing_leaves_no_shared_memory_of_python_behind(tmp_path: Path) -> None:
    name = tmp_path / "name"
    holder = (
        "import sys, time; from multiprocessing.shared_memory import SharedMemory\n"
        "segment = SharedMemory(create=True, size=4096)\n"
        "open(sys.argv[1] + '.part', 'w').write(segment.name)\n"
        "import os; os.rename(sys.argv[1] + '.part', sys.argv[1])\n"
        "time.sleep(600)"
    )
    with ServerProcess("holder", python(holder, str(name)), os.environ, tmp_path / "log") as server:
        server.start()
        server.wait_ready(name.exists, 10)
        segment = Path("/dev/shm") / name.read_text()
        assert segment.exists()
        server.kill()
        assert not segment.exists()


def test_a_server_can_be_started_again_after_a_kill(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    with ServerProcess("family", python(FAMILY, str(pids)), os.environ, tmp_path / "log") as server:
        seen = []
        for _ in range(2):
            server.start()
            server.wait_ready(pids.exists, 10)
            seen.append(pids.read_text())
            server.kill()
            pids.unlink()
        assert seen[0] != seen[1]
    assert (tmp_path / "log").read_text().count("family started") == 2


def test_a_child_that_outlives_its_server_is_ended_by_stop(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    orphan_maker = FAMILY.replace("time.sleep(600)\n", "sys.exit(0)\n").replace("import time; sys.exit(0)", "")
    with ServerProcess("orphans", python(orphan_maker, str(pids)), os.environ, tmp_path / "log") as server:
        server.start()
        assert eventually(pids.exists)
        child = int(pids.read_text().split()[1])
        assert eventually(lambda: not server.running)
        assert alive(child)
        server.stop()
        assert not alive(child)


def test_a_server_that_ignores_sigterm_is_killed_after_the_grace(tmp_path: Path) -> None:
    ready = tmp_path / "ready"
    stubborn = "import signal, sys, time; signal.signal(15, signal.SIG_IGN); open(sys.argv[1], 'w'); time.sleep(600)"
    with ServerProcess("stubborn", python(stubborn, str(ready)), os.environ, tmp_path / "log") as server:
        server.start()
        server.wait_ready(ready.exists, 10)
        server.stop(grace_s=0.1)
        assert not server.running


def test_a_server_that_ends_while_starting_is_reported_with_its_log(tmp_path: Path) -> None:
    dying = "print('no room for the KV cache'); raise SystemExit(3)"
    with ServerProcess("engine", python(dying), os.environ, tmp_path / "log") as server:
        server.start()
        with pytest.raises(EngineStartError, match="no room for the KV cache"):
            server.wait_ready(lambda: False, 30)


def test_a_server_that_never_gets_ready_is_given_up_and_progress_is_told(tmp_path: Path) -> None:
    waited: list[float] = []
    with ServerProcess("engine", python("import time; time.sleep(600)"), os.environ, tmp_path / "log") as server:
        server.start()
        with pytest.raises(EngineStartError, match=r"not ready within 0\.3 s"):
            server.wait_ready(lambda: False, 0.3, waited.append)
    assert waited == sorted(waited)
    assert waited


def test_a_server_cannot_be_started_twice(family: tuple[ServerProcess, list[int]]) -> None:
    with pytest.raises(EngineStartError, match="running already"):
        family[0].start()


def test_ignored_signals_do_not_leak_into_the_server(tmp_path: Path) -> None:
    """A tether that ignored SIGTERM by SIG_IGN would make the server ignore it too."""
    report = "import signal; print(signal.getsignal(15) is signal.SIG_DFL, flush=True)"
    with ServerProcess("server", python(report), os.environ, tmp_path / "log") as server:
        server.start()
        assert eventually(lambda: "True" in server.log_tail())


def test_when_the_starter_is_killed_its_servers_end_too(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    starter = textwrap.dedent(
        f"""
        import os, sys, time
        from pathlib import Path
        from kveik.engine.process import ServerProcess
        server = ServerProcess("family", [sys.executable, "-c", {FAMILY!r}, {str(pids)!r}], os.environ,
                               Path({str(tmp_path / "log")!r}))
        server.start()
        time.sleep(600)
        """
    )
    process = subprocess.Popen(python(starter))
    try:
        assert eventually(pids.exists)
        family = [int(pid) for pid in pids.read_text().split()]
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert eventually(lambda: not any(alive(pid) for pid in family), patience_s=15)


def test_free_ports_can_be_listened_on_and_each_is_another_one() -> None:
    ports = [free_port() for _ in range(50)]
    with contextlib.ExitStack() as stack:
        for port in ports:
            stack.enter_context(socket.create_server(("127.0.0.1", port)))
    assert len(set(ports)) == 50


def test_the_kernel_gives_a_free_port_to_nobody_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kernels = tmp_path / "ip_local_port_range"
    monkeypatch.setattr(process, "_KERNELS_PORTS", kernels)
    kernels.write_text("20000\t60999\n")
    assert all(12000 <= free_port() < 20000 for _ in range(50))


@pytest.mark.parametrize("written", ["1024\t65535\n", "nonsense", ""], ids=["nearly all", "nonsense", "nothing"])
def test_where_the_kernel_keeps_no_port_back_it_is_asked_for_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, written: str
) -> None:
    kernels = tmp_path / "ip_local_port_range"
    monkeypatch.setattr(process, "_KERNELS_PORTS", kernels)
    kernels.write_text(written)
    with socket.create_server(("127.0.0.1", free_port())):
        pass


def test_a_port_in_use_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    (used := socket.socket()).bind(("127.0.0.1", 0))
    port = used.getsockname()[1]
    monkeypatch.setattr(process, "_ports_to_choose", lambda: range(port, port + 1))
    with used:
        assert free_port() not in (port, 0)


def test_a_server_whose_log_cannot_be_written_does_not_start_and_leaves_no_descriptor(tmp_path: Path) -> None:
    server = ServerProcess("server", python("pass"), os.environ, tmp_path / "nowhere" / "log")
    descriptors = len(os.listdir("/proc/self/fd"))
    with pytest.raises(EngineStartError, match=r"cannot start server: .*nowhere"):
        server.start()
    assert not server.running
    assert len(os.listdir("/proc/self/fd")) == descriptors
    assert "No such file" in server.log_tail()


def test_a_server_shows_whether_it_runs(family: tuple[ServerProcess, list[int]]) -> None:
    server, _ = family
    assert repr(server) == "ServerProcess(family, running)"
    server.stop()
    assert repr(server) == "ServerProcess(family, not running)"


def test_only_the_end_of_a_long_log_is_shown(tmp_path: Path) -> None:
    server = ServerProcess("server", python("pass"), os.environ, tmp_path / "log")
    server.log.write_bytes(b"\xff\n" + b"".join(b"line %d\n" % number for number in range(50_000)))
    assert server.log_tail(3).splitlines() == ["line 49997", "line 49998", "line 49999"]


@pytest.mark.parametrize(
    ("script", "code"),
    [("raise SystemExit(7)", 7), ("import os; os.kill(os.getpid(), 9)", 137), ("pass", 0)],
    ids=["exit", "killed", "done"],
)
def test_the_tether_ends_as_the_server_did(script: str, code: int) -> None:
    reading_end, lifeline = os.pipe()
    done = subprocess.run(
        [sys.executable, "-m", "kveik.engine.tether", str(reading_end), *python(script)],
        pass_fds=(reading_end,),
        start_new_session=True,
        check=False,
    )
    os.close(reading_end)
    os.close(lifeline)
    assert done.returncode == code


def test_the_tether_ends_its_group_when_the_lifeline_is_cut(tmp_path: Path) -> None:
    reading_end, lifeline = os.pipe()
    started = tmp_path / "started"
    script = "import pathlib, sys, time; pathlib.Path(sys.argv[1]).touch(); time.sleep(600)"
    tether = subprocess.Popen(
        [sys.executable, "-m", "kveik.engine.tether", str(reading_end), *python(script, str(started))],
        pass_fds=(reading_end,),
        start_new_session=True,
    )
    os.close(reading_end)
    assert eventually(started.exists)
    assert tether.poll() is None
    os.close(lifeline)
    assert tether.wait(20) == 128 + signal.SIGTERM


def test_a_server_without_a_tether_leads_its_group_itself_and_goes_on_without_us(tmp_path: Path) -> None:
    starter = textwrap.dedent(
        f"""
        import os, sys
        from pathlib import Path
        from kveik.engine.process import ServerProcess
        server = ServerProcess("free", [sys.executable, "-c", "import time; time.sleep(600)"], os.environ,
                               Path({str(tmp_path / "log")!r}), tethered=False)
        server.start()
        print(server.group, flush=True)
        os.kill(os.getpid(), 9)
        """
    )
    done = subprocess.run(python(starter), capture_output=True, text=True, check=False)
    group = int(done.stdout)
    assert alive(group)
    assert os.getpgid(group) == group
    assert os.getsid(group) == os.getsid(0), "a session of its own would be scheduled apart"
    os.killpg(group, signal.SIGKILL)


@pytest.mark.parametrize("tethered", [True, False])
def test_a_server_that_is_asked_to_end_ends_its_children_itself(tmp_path: Path, tethered: bool) -> None:
    """Only the first process gets the signal: workers that got it too would end under their work."""
    told = tmp_path / "told"
    script = textwrap.dedent(
        f"""
        import signal, subprocess, sys, time
        heard = "import signal, time; signal.signal(15, lambda *_: print('child heard', flush=True)); "
        child = subprocess.Popen([sys.executable, "-c", heard + "print('child up', flush=True); time.sleep(600)"])
        signal.signal(15, lambda *_: (child.kill(), sys.exit(7)))
        open({str(told)!r}, "w").close()
        time.sleep(600)
        """
    )
    with ServerProcess("server", python(script), os.environ, tmp_path / "log", tethered=tethered) as server:
        server.start()
        assert server.exit_code is None
        assert eventually(told.exists)
        assert eventually(lambda: "child up" in server.log_tail())
        server.terminate()
        assert eventually(lambda: not server.running)
        assert server.exit_code == 7
        assert "child heard" not in server.log_tail()
        server.stop()
        assert server.exit_code == 7
        assert server.group == 0
        server.terminate()


def test_a_server_that_was_killed_says_by_which_signal(tmp_path: Path) -> None:
    with ServerProcess("s", python("import time; time.sleep(600)"), os.environ, tmp_path / "log", tethered=False) as s:
        s.start()
        os.kill(s.group, signal.SIGKILL)
        assert eventually(lambda: not s.running)
        assert s.exit_code == -signal.SIGKILL


def test_who_listens_on_a_port_is_seen_and_who_only_connects_is_not() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)) as client:
            found = ports_listened_at()
            assert (port, os.getpid()) in found
            assert client.getsockname()[1] not in dict(found)
    assert port not in dict(ports_listened_at())

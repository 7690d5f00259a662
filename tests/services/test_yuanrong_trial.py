"""``kveik store yuanrong up`` with the real etcd and worker: proved, used by an agent, ended without a trace."""

import re
import shutil
import signal
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from kveik.agent.node import NodeAgent
from kveik.config import load_stores
from kveik.engine.process import free_port
from tests.agents import connected, settings_in, some_keys, store_blocks, wait_until
from tests.etcd import etcd_binary
from tests.yuanrong import package

pytestmark = pytest.mark.slow
LONG_S = 100.0


class Trial:
    """The command on free ports, with its files in a folder of a short name."""

    def __init__(self, folder: Path) -> None:
        etcd_binary()
        package()
        self.folder = folder
        self.out = folder / "out"
        flags = [f"--port={_three_ports()}", f"--logs={folder}", "--memory=256MiB", f"--patience-s={LONG_S}"]
        command = [sys.executable, "-m", "kveik.cli.main", "store", "yuanrong", "up", *flags]
        with self.out.open("wb") as out:
            self.process = subprocess.Popen(command, stdout=out, stderr=out)
        wait_until(lambda: "Ctrl-C ends it" in self.told or self.process.poll() is not None, "it runs", LONG_S)
        assert self.process.poll() is None, self.told

    @property
    def told(self) -> str:
        return self.out.read_text()

    @property
    def children(self) -> list[psutil.Process]:
        return list(psutil.Process(self.process.pid).children(recursive=True))


def _three_ports() -> int:
    """The first of three in a row, as far as one can know."""
    while True:
        first = free_port()
        if free_port() == first + 1 and free_port() == first + 2:
            return first


@pytest.fixture
def trial() -> Iterator[Trial]:
    folder = Path(tempfile.mkdtemp(prefix="kveik-yr-"))
    made = Trial(folder)
    yield made
    made.process.kill()
    made.process.wait()
    shutil.rmtree(folder)


def test_the_printed_section_gives_an_agent_its_tier_and_ctrl_c_leaves_nothing(trial: Trial, tmp_path: Path) -> None:
    section = re.search(r"\[yuanrong\]\nworker = .*\n", trial.told)
    assert section is not None, trial.told
    assert tomllib.loads(section[0])["yuanrong"]["worker"].startswith("127.0.0.1:")
    config = tmp_path / "kveik.toml"
    config.write_text(section[0])
    agent = NodeAgent(settings_in(tmp_path), load_stores(file=config, environ={})).start()
    client = connected(tmp_path)
    assert store_blocks(client, some_keys(2)) == ["stored"] * 2
    assert agent.lower.drain(LONG_S)
    assert [(tier["name"], tier["blocks"]) for tier in agent.lower.stats()] == [("yuanrong", 2)]
    client.close()
    agent.close()
    assert "one etcd for all of them" in trial.told

    started = trial.children
    assert len(started) >= 2
    trial.process.send_signal(signal.SIGINT)
    assert trial.process.wait(LONG_S) == 0
    assert [process for process in started if process.is_running() and process.status() != "zombie"] == []
    left = {file.name for file in trial.folder.iterdir()}
    assert "etcd" not in left
    assert {file.name for file in (trial.folder / "datasystem").iterdir()} <= {"logs", "config"}


def test_a_worker_that_ends_ends_the_trial_with_its_name(trial: Trial) -> None:
    (worker,) = [process for process in trial.children if process.name().startswith("datasystem_work")]
    worker.kill()
    assert trial.process.wait(LONG_S) == 3
    assert "datasystem-worker has ended" in trial.told

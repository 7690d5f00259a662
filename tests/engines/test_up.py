"""``kveik up`` with real engines: a first answer, a second ``up``, a killed supervisor, and a clean end."""

import json
import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kveik.engine.group import living_members_of
from kveik.engine.process import free_port
from kveik.launch.up import Launch
from tests.agents import wait_until

pytestmark = pytest.mark.engine

MODEL = "smollm2-135m-instruct"
TEXT = """
[fleet]
name = "{name}"
state_folder = "{folder}/s"
drain_s = 10

[engine]
model = "{model}"
python = "{python}"
dtype = "float32"
max_model_tokens = 1024
kv_cache_bytes = "192 MiB"
mode = "eager"
arguments = "--max-num-seqs 4"

[agent]
arena_bytes = "256 MiB"

[router]
port = {router}
drain_s = 5
first_byte_s = 60

[[launch]]
name = "a"
port = {first}

[[launch]]
name = "b"
port = {second}
"""


class Node:
    """A node with two real engines in the background, and commands over it."""

    def __init__(self, folder: Path, model: Path, python: str) -> None:
        self.config = folder / "kveik.toml"
        router, first, second = (free_port() for _ in range(3))
        self.url = f"http://127.0.0.1:{router}"
        text = TEXT.format(
            name=f"up-{os.getpid()}",
            folder=folder,
            model=model,
            python=python,
            router=router,
            first=first,
            second=second,
        )
        self.config.write_text(text)
        self.shared_memory = shared_memory()
        self.started = ""

    @property
    def launch(self) -> Launch:
        return Launch.read(self.config, "", os.environ)

    def run(self, *words: str) -> str:
        """A command that must succeed; what it said."""
        command = [sys.executable, "-m", "kveik.cli.main", words[0], "--config", str(self.config), *words[1:]]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{done.stdout}\n{done.stderr}\n{self.logs()}"
        return done.stdout

    def pids(self) -> dict[str, int]:
        return {view.name: view.pid for view in self.launch.control.status().processes}

    def ask(self) -> dict[str, Any]:
        body = json.dumps({"model": MODEL, "prompt": "The capital of France is", "max_tokens": 4, "temperature": 0})
        request = urllib.request.Request(
            f"{self.url}/v1/completions", body.encode(), {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=300) as answer:
            document: dict[str, Any] = json.load(answer)
        return document

    def logs(self) -> str:
        logs = sorted(self.launch.folder.logs.glob("*.log"))
        return "\n".join(f"--- {log.name}\n{log.read_text(errors='replace')[-3000:]}" for log in logs)


def shared_memory() -> set[str]:
    return set(os.listdir("/dev/shm"))


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory, model: Callable[[str], Path], engine_python: str) -> Iterator[Node]:
    node = Node(tmp_path_factory.mktemp("up"), model(MODEL), engine_python)
    try:
        node.started = node.run("up", "-d")
        yield node
    finally:
        node.run("down", "--now", "--forget")


def test_after_up_the_router_answers_and_the_example_works_when_pasted(node: Node) -> None:
    assert f"the fleet is ready at {node.url}" in node.started
    assert "Paris" in node.ask()["choices"][0]["text"]
    (example,) = (line.strip() for line in node.started.splitlines() if line.strip().startswith("curl"))
    done = subprocess.run(example, shell=True, capture_output=True, text=True, check=False)
    assert json.loads(done.stdout)["choices"][0]["message"]["content"], done.stderr


def test_a_second_up_changes_nothing(node: Node) -> None:
    before = node.pids()
    assert "nothing to change" in node.run("up", "-d")
    assert node.pids() == before


def test_engines_and_router_outlive_a_killed_supervisor_and_are_adopted(node: Node) -> None:
    before, supervisor = node.pids(), node.launch.control.status().pid
    os.kill(supervisor, signal.SIGKILL)
    wait_until(lambda: not living_members_of(supervisor), "the supervisor is gone")
    assert "Paris" in node.ask()["choices"][0]["text"]
    node.run("up", "-d")
    assert node.pids() == before


def test_down_leaves_no_process_and_no_shared_memory_but_the_arena(node: Node) -> None:
    groups = list(node.pids().values())
    told = node.run("down")
    assert "all parts of node local have ended" in told
    assert not [group for group in groups if living_members_of(group)]
    mine = {name for name in shared_memory() - node.shared_memory if f"up-{os.getpid()}" in name}
    assert len(mine) == 1
    segments = {name for name in shared_memory() - node.shared_memory if name.startswith(("psm_", "sem.mp-"))}
    assert not [name for name in segments if not mapped_by_others(name)]


def mapped_by_others(name: str) -> bool:
    """Whether some process, of another test, uses a segment."""
    for maps in Path("/proc").glob("[0-9]*/maps"):
        try:
            if name in maps.read_text(errors="replace"):
                return True
        except OSError:
            continue
    return False

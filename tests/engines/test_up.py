"""``kveik up`` with real engines: a first answer, a second ``up``, a killed supervisor, and a clean end."""

import json
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kveik.engine.group import living_members_of, shared_memory_of
from tests.agents import wait_until
from tests.engines.node import MODEL, Node

pytestmark = pytest.mark.engine


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


def test_the_doctor_looks_at_all_of_it_and_raises_no_alarm(node: Node) -> None:
    answers = {answer["check"]: answer for answer in json.loads(node.run("doctor", "--json"))}
    alarms = [
        point
        for answer in answers.values()
        for point in answer["points"]
        if point["outcome"] not in {"well", "unknown"}
    ]
    assert alarms == []
    seen = ("answers", "connector", "prefix-caching", "hashes", "rendering", "options", "start", "ports")
    assert {name: answers[name]["outcome"] for name in seen} == dict.fromkeys(seen, "well")


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
    segments = {segment for group in groups for segment in shared_memory_of(group)}
    assert segments  # vLLM's processes talk through some
    told = node.run("down")
    assert "all parts of node local have ended" in told
    assert not [group for group in groups if living_members_of(group)]
    assert not [segment for segment in segments if segment.exists()]
    assert len([name for name in os.listdir("/dev/shm") if node.name in name]) == 1

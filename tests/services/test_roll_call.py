"""Agents of two nodes on a share that is one, and on one that is not: a folder that each node has for itself.

The second node of the fake share runs in a mount namespace of its own, with a disk of its own under the same path, as
it is where a mount is missing on one node. Both fleets run at the same time, since it takes a while until a node that
was never seen is missed.
"""

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kveik.clock import Deadline
from kveik.doctor.check import Outcome, Point
from kveik.doctor.store_pairs import calls_of_state, judge_pairs
from kveik.store.filesystem import FilesystemStore
from kveik.store.filesystem_options import FilesystemOptions
from kveik.store.roll_call import NAMES, Roster
from kveik.store.roll_call_round import KEPT
from kveik.store.roll_call_verdict import Presence
from tests.agents import AgentProcess, connected, wait_until

PATIENCE_S = 60.0
PERIOD_S = 0.2
NODES = ("n0", "n1")
pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]


class NodeProcess(AgentProcess):
    """A node's agent; with ``private``, in a mount namespace where that folder is a disk of the node's own."""

    def __init__(self, folder: Path, node: str, cache: Path, *, private: bool = False) -> None:
        folder.mkdir()
        self._private = cache if private else None
        period: Any = PERIOD_S
        super().__init__(
            folder, filesystem=str(cache), fleet=f"roll-{cache.name}", node=node, nodes=",".join(NODES),
            probe_period_s=period, filesystem_reserve_bytes=0,
        )  # fmt: skip

    def _start(self) -> "subprocess.Popen[bytes]":
        command = [sys.executable, "-m", "kveik.cli.main", "agent", *self._flags]
        if self._private is not None:
            script = f'mount -t tmpfs -o size=40m none "{self._private}" && exec "$@"'
            command = ["unshare", "--mount", "sh", "-c", script, "sh", *command]
        with (self.folder / "agent.log").open("ab") as log:
            process = subprocess.Popen(command, stdout=log, stderr=log)
        wait_until(lambda: process.poll() is not None or self._answers(), "the agent answers", PATIENCE_S)
        assert process.poll() is None, self.log
        return process

    def state(self) -> dict[str, Any]:
        client = connected(self.folder, "stats")
        try:
            return client.stats(Deadline.after(10))
        finally:
            client.close()

    def sees(self) -> dict[str, str]:
        (tier,) = self.state()["tiers"]
        return {entry["node"]: entry["presence"] for entry in tier["roll_call"]["nodes"]}

    def end(self) -> None:
        """An orderly end."""
        self.process.terminate()
        self.process.wait(timeout=30)


def may_have_namespaces() -> bool:
    command = ["unshare", "--mount", "true"]
    return shutil.which("unshare") is not None and subprocess.run(command, check=False).returncode == 0


@pytest.fixture(scope="module")
def fleets(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, list[NodeProcess]]]:
    """Nodes by the name of what they have: one ``share``, or a ``fake`` one."""
    if not may_have_namespaces():
        pytest.skip("may not make a mount namespace here")
    folder = tmp_path_factory.mktemp("roll")
    started: list[NodeProcess] = []
    fleets: dict[str, list[NodeProcess]] = {}
    try:
        for name in ("share", "fake"):
            (folder / name).mkdir()
            fleets[name] = []
            for node in NODES:
                private = name == "fake" and node == "n1"
                fleets[name].append(NodeProcess(folder / f"{name}-{node}", node, folder / name, private=private))
                started.append(fleets[name][-1])
        yield fleets
    finally:
        for process in started:
            process.close()


def points(nodes: list[NodeProcess]) -> list[Point]:
    calls = [call for node in nodes if (call := calls_of_state(node.state())) is not None]
    return list(judge_pairs(calls, NODES))


def blocks_of_the_call(folder: Path) -> int:
    """How many there are under any of the names that nodes have."""
    roster = Roster(f"roll-{folder.name}", "n0", NODES)
    keys = [roster.key(node, number) for node in NODES for number in range(NAMES)]
    store = FilesystemStore(FilesystemOptions(root=folder, sweep_interval_s=0))
    try:
        return sum(store.lookup(keys, Deadline.after(PATIENCE_S)))
    finally:
        store.close()


def test_a_share_is_found_shared_and_a_node_local_folder_is_found_out(fleets: dict[str, list[NodeProcess]]) -> None:
    here, never = Presence.HERE.value, Presence.NEVER.value
    share, fake = fleets["share"], fleets["fake"]
    wait_until(lambda: [node.sees() for node in share] == [{"n0": here, "n1": here}] * 2, "all are seen", PATIENCE_S)
    assert {point.outcome for point in points(share)} == {Outcome.WELL}

    apart = [{"n0": here, "n1": never}, {"n0": never, "n1": here}]
    wait_until(lambda: [node.sees() for node in fake] == apart, "each sees itself alone", PATIENCE_S)
    found = points(fake)
    assert [point.outcome for point in found] == [Outcome.WRONG, Outcome.WRONG]
    assert "n0 never saw what n1 keeps there" in found[0].told
    assert "agent.filesystem" in found[0].remedy


def test_it_stays_small_is_no_block_of_a_model_and_goes_with_its_agent(fleets: dict[str, list[NodeProcess]]) -> None:
    one, two = fleets["share"]
    wait_until(lambda: one.sees() == {"n0": "here", "n1": "here"}, "both are there", PATIENCE_S)
    folder = Path(next(flag.partition("=")[2] for flag in one._flags if flag.startswith("--filesystem=")))
    assert 0 < blocks_of_the_call(folder) <= 2 * (KEPT + 1)
    state = one.state()
    assert state["namespaces"] == []
    assert not any(name.startswith("filesystem.") for name in state["counters"]), json.dumps(state["counters"])
    two.end()
    wait_until(lambda: one.sees()["n1"] == "old", "the other is missed", PATIENCE_S)
    one.end()
    assert blocks_of_the_call(folder) == 0

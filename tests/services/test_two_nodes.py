"""Two nodes of one fleet on two loopback addresses, with a real etcd: `kveik up --node` on each, simulated engines."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kveik.engine.client import CompletionRequest, EngineClient
from kveik.engine.process import free_port
from kveik.errors import FleetError, SuperviseError
from kveik.fleet.client import FleetClient
from kveik.fleet.etcd_gateway import EtcdAddress, EtcdGateway
from kveik.supervise.client import ControlClient
from kveik.supervise.messages import ProcessView
from kveik.watchdog.groups import Orders
from tests.agents import wait_until
from tests.etcd import Etcd, running_etcd

ADDRESSES = {"n0": "127.0.0.2", "n1": "127.0.0.3"}
PATIENCE_S = 100.0
pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


class TwoNodes:
    """The fleet: an engine on each node, and a data-parallel group ``g`` with a rank on each."""

    def __init__(self, folder: Path, etcd: Etcd) -> None:
        self.folder = folder
        self.fleet = f"two-{os.getpid()}"
        self.port, first = free_port(), free_port()
        self.etcd = EtcdGateway(EtcdAddress.parse(f"etcd://{etcd.address}"))
        self.config = folder / "kveik.toml"
        nodes = "".join(f'[[nodes]]\nname = "{name}"\naddress = "{address}"\n' for name, address in ADDRESSES.items())
        self.config.write_text(
            f'[fleet]\nname = "{self.fleet}"\nstate_folder = "{folder}/state"\nfirst_port = {first}\ndrain_s = 2\n'
            '[engine]\nsimulated = true\nserved_name = "simulated"\nkv_events = false\n'
            f'[agent]\narena_bytes = "32 MiB"\nfilesystem = "{folder}/cache"\nfilesystem_reserve_bytes = 0\n'
            "probe_period_s = 0.5\n"
            f'[router]\nport = {self.port}\nregistry = "etcd://{etcd.address}"\npolicy = "round-robin"\ndrain_s = 2\n'
            "[watchdog]\nprobe_period_s = 0.5\nrestart_grace_s = 0\nrestart_pause_s = 0\ngood_probes = 1\n"
            f"{nodes}"
            '[[launch]]\nname = "e0"\nnode = "n0"\n[[launch]]\nname = "e1"\nnode = "n1"\n'
            'environment = "VLLM_LOGING_LEVEL=INFO"\n'
            '[[launch]]\nname = "g"\nnode = "n0"\ndata_parallel = 2\n'
            '[[launch]]\nname = "g-1"\nnode = "n1"\nhead = "g"\n'
        )

    def kveik(self, command: str, node: str, *arguments: str) -> "subprocess.Popen[str]":
        """A command for one node."""
        words = [sys.executable, "-m", "kveik.cli.main", command, "--config", str(self.config), "--node", node]
        return subprocess.Popen([*words, *arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    def up(self) -> None:
        """Both nodes at once, in the background."""
        started = {node: self.kveik("up", node, "-d") for node in ADDRESSES}
        for node, process in started.items():
            told, _ = process.communicate(timeout=PATIENCE_S * 2)
            assert process.returncode == 0, f"{node}: {told}"

    def control(self, node: str) -> ControlClient:
        return ControlClient(str(self.folder / "state" / node / "control.sock"))

    def part(self, node: str, name: str) -> ProcessView:
        return self.control(node).view(name)

    def url(self, node: str) -> str:
        return f"http://{ADDRESSES[node]}:{self.port}"

    def states(self, node: str) -> dict[str, str]:
        """The engines as a node's router has them; none while it does not answer."""
        try:
            engines: list[dict[str, Any]] = FleetClient(self.url(node)).engines()["data"]
        except FleetError:
            return {}
        return {engine["engine_id"]: engine["state"] for engine in engines}

    def wait_ready(self, *nodes: str, engines: tuple[str, ...] = ("e0", "e1", "g")) -> None:
        for node in nodes:
            wait_until(lambda: self._ready(node, engines), f"{engines} are ready at {node}", PATIENCE_S)  # noqa: B023

    def _ready(self, node: str, engines: tuple[str, ...]) -> bool:
        states = self.states(node)
        return all(states.get(name) == "ready" for name in engines)

    def ask(self, node: str) -> str:
        client = EngineClient(self.url(node))
        return client.complete(CompletionRequest(prompt=(1, 2, 3), max_tokens=2), "simulated").finish_reason

    def served(self, node: str, name: str) -> float:
        """Requests that an engine has finished, by its own count."""
        with urllib.request.urlopen(f"{self.part(node, name).url}/metrics", timeout=10) as answer:
            lines = answer.read().decode().splitlines()
        return sum(float(line.split()[-1]) for line in lines if line.startswith("vllm:request_success_total"))

    def generation(self) -> int:
        return Orders.read(self.etcd.snapshot(), "n0").generation("g")

    def kill_node(self, node: str) -> None:
        """kill -9 of all that runs there, its supervisor first."""
        status = self.control(node).status()
        os.kill(status.pid, signal.SIGKILL)
        for view in status.processes:
            for pid in (view.pid, *view.pids):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL) if pid else None

    def down(self) -> None:
        for node in ADDRESSES:
            with contextlib.suppress(SuperviseError):
                self.control(node).status()
                self.kveik("down", node).communicate(timeout=PATIENCE_S)
            with contextlib.suppress(SuperviseError):
                self.kill_node(node)
        for arena in Path("/dev/shm").glob(f"kveik-{os.getuid()}-{self.fleet}-*"):
            arena.unlink()


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TwoNodes]:
    folder = Path(tempfile.mkdtemp(prefix="kveik-two-"))  # a short path: it holds Unix sockets
    with running_etcd(tmp_path_factory.mktemp("etcd")) as etcd:
        nodes = TwoNodes(folder, etcd)
        try:
            nodes.up()
            yield nodes
        finally:
            nodes.down()
            shutil.rmtree(folder, ignore_errors=True)


def test_an_engine_of_either_node_is_served_by_both_routers(fleet: TwoNodes) -> None:
    fleet.wait_ready("n0", "n1")
    before = {name: fleet.served(node, name) for node, name in (("n0", "e0"), ("n1", "e1"))}
    for node in ADDRESSES:
        assert [fleet.ask(node) for _ in range(9)] == ["length"] * 9
    for node, name in (("n0", "e0"), ("n1", "e1")):
        assert fleet.served(node, name) >= before[name] + 6
    assert "g-1" not in fleet.states("n0")  # further ranks of an engine are none of their own


def test_both_agents_find_in_the_shared_tier_what_the_other_put_there_as_routers_and_the_doctor_say(
    fleet: TwoNodes,
) -> None:
    def sights(node: str) -> dict[str, dict[str, str]]:
        nodes = FleetClient(fleet.url(node)).status().nodes
        return {one.node: {sight.node: sight.presence for tier in one.tiers for sight in tier.sights} for one in nodes}

    both = {"n0": "here", "n1": "here"}
    for node in ADDRESSES:
        wait_until(lambda: sights(node) == {"n0": both, "n1": both}, f"{node}: each sees both", PATIENCE_S)  # noqa: B023
        doctor = fleet.kveik("doctor", node, "pairs", "stores")
        told, _ = doctor.communicate(timeout=PATIENCE_S)
        assert doctor.returncode == 0, told
        assert "each of" in told or "well: filesystem tier" in told
        assert "unknown" not in told


def test_what_the_checks_of_a_machine_find_there_is_told_on_the_other_node(fleet: TwoNodes) -> None:
    def looked(node: str) -> bool:
        nodes = FleetClient(fleet.url(node)).status().nodes
        return len(nodes) == 2 and all(one.own_checks is not None for one in nodes)

    def told(node: str) -> dict[str, str]:
        doctor = fleet.kveik("doctor", node, "nodes", "--json")
        (answer,) = json.loads(doctor.communicate(timeout=PATIENCE_S)[0])
        return {point["about"]: point["told"] for point in answer["points"] if "(environment)" in point["about"]}

    for node in ADDRESSES:
        wait_until(lambda: looked(node), f"{node}: both machines were looked at", PATIENCE_S)  # noqa: B023
    ((about, words),) = told("n0").items()
    assert about.endswith("on node n1 (environment)")
    assert "VLLM_LOGING_LEVEL" in about + words
    assert "VLLM_LOGGING_LEVEL" in about + words
    assert told("n1") == {}, "a node that has to do with its own machine alone is told by its own checks"


def test_a_head_that_dies_has_its_ranks_on_both_nodes_restarted_once(fleet: TwoNodes) -> None:
    fleet.wait_ready("n0", "n1")
    generation, head, rank = fleet.generation(), fleet.part("n0", "g"), fleet.part("n1", "g-1")
    os.kill(head.pid, signal.SIGKILL)
    for pid in head.pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    wait_until(lambda: fleet.part("n1", "g-1").pid not in {0, rank.pid}, "the rank is another process", PATIENCE_S)
    fleet.wait_ready("n0", "n1")
    assert fleet.generation() == generation + 1
    assert fleet.part("n0", "g").restarts == head.restarts + 1
    assert fleet.part("n1", "g-1").restarts == rank.restarts + 1
    assert [fleet.part(node, name).restarts for node, name in (("n0", "e0"), ("n1", "e1"))] == [0, 0]


def test_a_rank_that_dies_has_its_head_restarted_once(fleet: TwoNodes) -> None:
    fleet.wait_ready("n0", "n1")
    generation, head, rank = fleet.generation(), fleet.part("n0", "g"), fleet.part("n1", "g-1")
    for pid in (rank.pid, *rank.pids):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    wait_until(lambda: fleet.part("n0", "g").pid not in {0, head.pid}, "the head is another process", PATIENCE_S)
    wait_until(lambda: fleet.part("n1", "g-1").state == "ready", "the rank is back", PATIENCE_S)
    fleet.wait_ready("n0", "n1")
    assert fleet.generation() == generation + 1
    assert fleet.part("n0", "g").restarts == head.restarts + 1
    assert fleet.part("n1", "g-1").restarts == rank.restarts + 1


def test_when_a_node_dies_the_other_goes_on(fleet: TwoNodes) -> None:
    fleet.wait_ready("n0", "n1")
    assert json.dumps(fleet.states("n0"), sort_keys=True) == json.dumps(fleet.states("n1"), sort_keys=True)
    fleet.kill_node("n1")
    assert [fleet.ask("n0") for _ in range(30)] == ["length"] * 30
    assert fleet.part("n0", "e0").restarts == 0
    with pytest.raises(SuperviseError):
        fleet.control("n1").status()

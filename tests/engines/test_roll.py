"""A roll of two real engines under four clients: another configuration, proved on the first one, and nothing lost."""

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from kveik.bench.clients import SteadyClients
from kveik.cli.main import main
from kveik.engine.client import EngineClient
from kveik.engine.process import free_port
from kveik.fleet.client import FleetClient
from kveik.launch.addresses import announcements
from kveik.launch.fleet_spec import read_fleet
from kveik.launch.parts import Here, describe_node, read_tables
from kveik.supervise.backoff import Pauses
from kveik.supervise.client import ControlClient
from kveik.supervise.keeper import Surroundings
from kveik.supervise.node_folder import NodeFolder
from kveik.supervise.part import Part
from kveik.supervise.supervisor import NodeIdentity, Supervisor
from tests.agents import wait_until

MODEL = "smollm2-135m-instruct"
BOOT_S = 400.0
STREAM_TOKENS = 200
CLIENTS = 4
PROMPTS = [tuple(range(start, start + 60)) for start in range(100, 500, 50)]

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]


@dataclass
class Fleet:
    """Two engines, an agent and a router under a supervisor, as ``kveik.toml`` describes them; no watchdog."""

    config: Path
    folder: Path
    python: str
    model: Path
    port: int = field(default_factory=free_port)
    ports: tuple[int, int] = field(default_factory=lambda: (free_port(), free_port()))

    @property
    def router(self) -> FleetClient:
        """The router's fleet API."""
        return FleetClient(f"http://127.0.0.1:{self.port}")

    @property
    def control(self) -> ControlClient:
        """The supervisor."""
        return ControlClient(str(self.folder / "local" / "control.sock"))

    def write(self, kv_cache_bytes: int) -> None:
        """Describe it; another size of an engine's own cache makes it another version, in the same namespace."""
        cores = sorted(os.sched_getaffinity(0))
        launched = "".join(
            f'[[launch]]\nname = "engine-{n}"\nport = {port}\ncores = "{cores[n % len(cores)]}"\n'
            for n, port in enumerate(self.ports, 1)
        )
        self.config.write_text(
            f'[fleet]\nstate_folder = "{self.folder}"\nready_min = 1\ndrain_s = 900\n'
            f'[engine]\npython = "{self.python}"\nmodel = "{self.model}"\ndtype = "float32"\nmode = "eager"\n'
            f"max_model_tokens = 2048\nkv_cache_bytes = {kv_cache_bytes}\nkv_events = false\n"
            f'[agent]\narena_bytes = {512 << 20}\narena = "{self.folder / "arena"}"\n'
            "[connector]\nlookup_deadline_s = 5.0\nload_deadline_s = 60.0\nsave_deadline_s = 60.0\n"
            f"[router]\nport = {self.port}\n{launched}"
        )

    def described(self, config: Path, _: Mapping[str, Mapping[str, Any]]) -> Sequence[Part]:
        """The parts, without the watchdog: this test announces the engines itself."""
        spec = read_fleet(config, os.environ)
        parts = describe_node(spec, read_tables(config, os.environ), Here())
        return [part for part in parts if part.kind != "watchdog"]

    def pids(self) -> dict[str, int]:
        """The engines' processes."""
        return {view.name: view.pid for view in self.control.status().processes if view.kind == "engine"}

    def serving(self) -> list[str]:
        """The engines that get requests."""
        engines = self.router.traffic()["engines"]
        return [engine["id"] for engine in engines if engine["state"] == "ready"]


@pytest.fixture(scope="module")
def fleet(
    engine_python: str, model: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Fleet]:
    folder = tmp_path_factory.mktemp("roll")
    made = Fleet(folder / "kveik.toml", folder / "state", engine_python, model(MODEL))
    made.write(kv_cache_bytes=200_000_000)
    identity = NodeIdentity("kveik", "local", made.config, NodeFolder(made.folder / "local"))
    supervisor = Supervisor(identity, made.described, Surroundings(Pauses(0.5, 5.0)))
    thread = threading.Thread(target=supervisor.run)
    supervisor.open()
    thread.start()
    try:
        wait_until(lambda: {view.state for view in supervisor.status().processes} == {"ready"}, "all is up", BOOT_S)
        for announced in announcements(read_fleet(made.config, os.environ), "local"):
            made.router.announce(announced)
        wait_until(lambda: len(made.serving()) == 2, "both engines serve", BOOT_S)
        yield made
    finally:
        supervisor.down(0)
        thread.join(60)


@contextlib.contextmanager
def watched(fleet: Fleet, counts: list[int]) -> Iterator[None]:
    """Count the engines that get requests, again and again, and keep the leases that a watchdog would."""
    over = threading.Event()

    def watch() -> None:
        while not over.wait(0.1):
            counts.append(len(fleet.serving()))
            for name in fleet.pids():
                fleet.router.renew(name)

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def test_two_engines_get_another_configuration_under_load_and_no_request_notices(
    fleet: Fleet, capsys: pytest.CaptureFixture[str]
) -> None:
    before, counts = fleet.pids(), list[int]()
    client = EngineClient(fleet.router.url, read_timeout_s=BOOT_S)
    with (
        watched(fleet, counts),
        SteadyClients(client, MODEL, PROMPTS, count=CLIENTS, answer_tokens=STREAM_TOKENS) as clients,
    ):
        wait_until(lambda: len(clients.tally.asked) >= CLIENTS, "the clients are served", BOOT_S)
        fleet.write(kv_cache_bytes=220_000_000)
        began_s = time.monotonic()
        code = main(["roll", "--config", str(fleet.config)])
        took_s = time.monotonic() - began_s
        told = capsys.readouterr().out
        assert code == 0, told
        served = len(clients.tally.asked)
        wait_until(lambda: len(clients.tally.asked) >= served + CLIENTS, "they are served on", BOOT_S)
        tally = clients.stop()
    assert tally.failures == [], "0 failed, 0 cut"
    assert min(counts) >= 1
    assert set(fleet.pids().values()).isdisjoint(before.values()), "both were restarted"
    assert "engine-1: verify: the first of a new version: its configuration is another" in told
    assert "prompts hold both ways with the fleet's engine: hits give what cold runs give" in told
    assert "engine-2: verify: this version is proved already" in told
    print(f"rolled in {took_s:.0f} s, {len(tally.asked)} streams, slowest {tally.slowest_s:.1f} s")

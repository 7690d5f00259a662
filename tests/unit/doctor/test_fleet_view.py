"""A fleet is read once: engines, routers and the agent, what answers and what does not."""

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import ClassVar

import pytest

from kveik.agent.node import NodeAgent
from kveik.config import AgentSettings
from kveik.doctor.check import Context, Outcome
from kveik.doctor.fleet_answers import check_answers
from kveik.doctor.fleet_described import DescribedEngine, DescribedFleet
from kveik.doctor.fleet_hash_check import check_hashes
from kveik.doctor.fleet_rendering import check_rendering
from kveik.doctor.fleet_view import Fleet, FleetView, SeenAgent, SeenEngine, named_engines
from kveik.engine.client import ServedModel
from kveik.engine.process import free_port
from kveik.errors import ConfigError
from tests.routers import RouterProcess, RouterThread, SimProcess
from tests.unit.doctor.paper_fleet import PaperFleet


@dataclass(frozen=True)
class Two:
    """Two engines that publish events; the second hashes from another seed."""

    processes: tuple[SimProcess, SimProcess]
    described: tuple[DescribedEngine, DescribedEngine]

    @property
    def urls(self) -> list[str]:
        return [process.url for process in self.processes]


@pytest.fixture(scope="module")
def sims(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Two]:
    folder = tmp_path_factory.mktemp("sims")
    first, second = (f"tcp://127.0.0.1:{free_port()}" for _ in range(2))
    with SimProcess(folder, events=first) as one, SimProcess(folder, events=second, hash_seed="1") as two:
        described = DescribedEngine("a", one.url, events=first), DescribedEngine("b", two.url, events=second)
        yield Two((one, two), described)


def context_for(fleet: Fleet) -> Context:
    return Context("python", {}, fleet=fleet)


def test_engines_are_read_once_by_their_addresses(sims: Two) -> None:
    fleet = Fleet(DescribedFleet("flags", named_engines(sims.urls[:1])))
    view = fleet.view()
    (engine,) = view.engines
    assert (engine.trouble, engine.no_token, engine.model) == ("", "", "simulated")
    assert engine.metrics is not None
    assert engine.pid == sims.processes[0].process.pid
    assert engine.environ is not None
    assert "sim-engine" in engine.command
    assert fleet.view() is view


def test_an_engine_that_does_not_answer_has_a_reason(sims: Two) -> None:
    gone = DescribedEngine("gone", f"http://127.0.0.1:{free_port()}")
    view = Fleet(DescribedFleet("flags", (*named_engines(sims.urls[:1]), gone))).view()
    assert "refused" in view.engines[1].trouble
    assert [engine.name for engine in view.answering] == [view.engines[0].name]
    assert view.is_up


def test_an_address_that_is_none_does_not_end_the_look() -> None:
    odd = DescribedEngine("odd", "ftp://x")
    (engine,) = Fleet(DescribedFleet("flags", (odd,))).view().engines
    assert "no address of an engine" in engine.trouble


def test_engines_that_only_a_router_knows_are_read_too(sims: Two, tmp_path: Path) -> None:
    with RouterThread(tmp_path, sims.urls) as router:
        dead = f"http://127.0.0.1:{free_port()}"
        fleet = Fleet(DescribedFleet("flags", named_engines(sims.urls[:1]), (router.url, dead)))
        view = fleet.view()
        assert {engine.described.url for engine in view.engines} == set(sims.urls)
        assert {engine.state for engine in view.engines} == {"ready"}
        assert [bool(seen.trouble) for seen in view.routers] == [False, True]
        verdict = check_answers(context_for(fleet))
    assert [point.about for point in verdict.points if point.outcome is Outcome.WRONG] == [dead]


def test_a_router_that_wants_a_token_is_asked_with_it(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("open-sesame\n")
    with RouterProcess(tmp_path, admission_token_file=token) as router:
        described = DescribedFleet("flags", routers=(router.url,))
        (locked,) = Fleet(described).view().routers
        (open_,) = Fleet(described, token=lambda: "open-sesame").view().routers
    assert (locked.shows, bool(locked.locked), locked.trouble) == (False, True, "")
    assert (open_.shows, open_.members) == (True, {})


def test_headless_ranks_are_not_asked() -> None:
    rank = DescribedEngine("rank", "http://127.0.0.1:1", headless=True)
    assert Fleet(DescribedFleet("flags", (rank,))).view() == FleetView((), (), None)


def test_the_agent_shows_its_state_or_why_not(tmp_path: Path) -> None:
    settings = AgentSettings(socket=str(tmp_path / "a.sock"), arena=str(tmp_path / "arena"), arena_bytes=64 << 20)
    node = NodeAgent(settings).start()
    try:
        seen = Fleet(DescribedFleet("flags", agent_socket=settings.socket)).view().agent
        assert seen is not None
        assert seen.state is not None
        assert seen.facts("00" * 16) == {}
    finally:
        node.close()
    gone = Fleet(DescribedFleet("flags", agent_socket=settings.socket)).view().agent
    assert gone is not None
    assert gone.trouble


def test_facts_of_a_namespace_are_those_that_the_agent_tells() -> None:
    agent = SeenAgent("s", {"namespaces": [{"digest": "aa", "facts": {"dtype": "float32"}}]})
    assert agent.facts("aa") == {"dtype": "float32"}
    assert agent.facts("bb") == {}


def test_engines_are_grouped_by_what_they_serve() -> None:
    one = SeenEngine(DescribedEngine("a", "http://x:1"), models=(ServedModel("m", 10),))
    other = SeenEngine(DescribedEngine("b", "http://x:2"), models=(ServedModel("n", 20),))
    silent = SeenEngine(DescribedEngine("c", "http://x:3"), trouble="refused")
    view = FleetView((one, other, silent), (), None)
    assert view.by_model() == {"m": (one,), "n": (other,)}
    assert (silent.model, silent.max_model_tokens) == ("", 0)


def test_what_is_no_address_is_refused() -> None:
    with pytest.raises(ConfigError, match="no address of an engine"):
        named_engines(["ftp://x"])


def test_events_of_one_prompt_tell_engines_with_different_seeds_apart(sims: Two) -> None:
    fleet = Fleet(DescribedFleet("flags", sims.described))
    verdict = check_hashes(context_for(fleet))
    (point,) = (point for point in verdict.points if point.about == "block hashes of simulated")
    assert point.outcome is Outcome.WRONG
    assert "one prompt got several hashes" in point.told
    assert "KV events of 2 engines about one prompt" in verdict.evidence


def test_events_of_engines_that_hash_alike_are_well(sims: Two) -> None:
    twice = (sims.described[0], replace(sims.described[0], name="same"))
    points = check_hashes(context_for(Fleet(DescribedFleet("flags", twice)))).points
    assert {point.about: point.outcome for point in points}["block hashes of simulated"] is Outcome.WELL


def test_simulated_engines_render_alike(sims: Two) -> None:
    verdict = check_rendering(context_for(Fleet(DescribedFleet("flags", sims.described))))
    assert verdict.outcome is Outcome.WELL, verdict


def test_without_engines_nothing_can_be_compared() -> None:
    context = context_for(PaperFleet(DescribedFleet("paper"), FleetView((), (), None)))
    assert check_hashes(context).outcome is Outcome.UNKNOWN
    assert check_rendering(context).outcome is Outcome.UNKNOWN


class PaperRouter(BaseHTTPRequestHandler):
    """Lists two engines: one that is known by its address, with events, and one that nobody else knows."""

    members: ClassVar[list[dict[str, object]]] = []

    def do_GET(self) -> None:
        raw = json.dumps({"data": self.members, "trouble": "etcd is slow"}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(raw)))
        self.end_headers()
        self.wfile.write(raw)

    def log_message(self, format: str, *args: object) -> None:
        pass


def test_what_is_described_is_joined_with_what_routers_know() -> None:
    known, other = (f"http://127.0.0.1:{free_port()}" for _ in range(2))
    members: list[dict[str, object]] = [
        {"engine_id": "named-otherwise", "url": known, "state": "draining", "why": "a roll", "events": "tcp://e:1"},
        {"engine_id": "stranger", "url": other, "state": "ready", "labels": {"node": "n7", "model_path": "/m"}},
    ]
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (PaperRouter,), {"members": members}))
    thread = Thread(target=server.serve_forever)
    thread.start()
    try:
        url = f"http://127.0.0.1:{server.server_port}"
        view = Fleet(DescribedFleet("paper", (DescribedEngine("a", known, shared_cache=True),), (url,))).view()
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
    a, stranger = view.engines
    assert (a.name, a.state, a.why) == ("a", "draining", "a roll")
    assert (a.described.events, a.described.shared_cache) == ("tcp://e:1", True)
    assert (stranger.name, stranger.described.node, stranger.described.model) == ("stranger", "n7", "/m")
    assert view.routers[0].registry_trouble == "etcd is slow"
    assert not view.answering

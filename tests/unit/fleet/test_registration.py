import json
from collections.abc import Iterator
from contextlib import ExitStack
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest

from kveik.clock import FakeClock
from kveik.errors import AdmissionError, ConfigError, RefusedError, RegistryError, UnknownEngineError
from kveik.fleet.announcement import EngineAnnouncement
from kveik.fleet.client import FleetClient
from kveik.fleet.embedded import EmbeddedRegistry
from kveik.fleet.lifecycle import Event, State
from kveik.fleet.member_file import MemberFile
from kveik.fleet.registration import RETRY_S, Act, Look, Registration, next_act
from kveik.fleet.report import NodeReport
from kveik.router.fleet_api import Admission, FleetAdmin, FleetApi
from tests.fleet import engine, served
from tests.pages import serving

OPEN = Admission("", loopback=True)


@pytest.mark.parametrize(
    ("look", "refusals", "registered", "changed", "act"),
    [
        (Look.ANSWERS, 0, False, True, Act.ANNOUNCE),
        (Look.ANSWERS, 0, True, False, Act.RENEW),
        (Look.ANSWERS, 0, True, True, Act.ANNOUNCE),
        (Look.SILENT, 0, True, False, Act.RENEW),  # busy: it keeps its place
        (Look.SILENT, 0, False, False, Act.NOTHING),
        (Look.REFUSES, 1, True, False, Act.RENEW),  # once may be a moment
        (Look.REFUSES, 2, True, False, Act.WITHDRAW),
        (Look.REFUSES, 2, False, False, Act.NOTHING),
    ],
)
def test_what_the_router_is_told_follows_from_what_the_engine_shows(
    look: Look, refusals: int, registered: bool, changed: bool, act: Act
) -> None:
    assert next_act(look, refusals=refusals, registered=registered, changed=changed) is act


class Sidecar:
    """A registration whose engine is a variable, at a router that can be ended and started again."""

    def __init__(self, folder: Path) -> None:
        self.clock = FakeClock()
        self.file = folder / "run" / "fleet.json"
        self.shown: tuple[Look, EngineAnnouncement | None, str] = (Look.ANSWERS, engine(1), "")
        self.token = ""
        self._running = ExitStack()
        self.port = 0
        self.start_router()
        self.client = FleetClient(f"127.0.0.1:{self.port}", token=lambda: self.token, deadline_s=5.0)
        self.registration = Registration(self.client, lambda: self.shown)

    def start_router(self, admission: Admission = OPEN) -> None:
        file = MemberFile(self.file, lock_wait_s=0.0)
        self.registry = EmbeddedRegistry(file, clock=self.clock, ticking=False)
        url = self._running.enter_context(served(FleetAdmin(FleetApi(self.registry, self.clock), admission), self.port))
        self.port = int(url.rpartition(":")[2])

    def stop_router(self) -> None:
        self._running.pop_all().close()
        self.registry.close()

    def states(self) -> dict[str, State]:
        return {member.name: member.state for member in self.registry.members()}


@pytest.fixture
def sidecar(tmp_path: Path) -> Iterator[Sidecar]:
    sidecar = Sidecar(tmp_path)
    yield sidecar
    sidecar.stop_router()


def test_an_engine_is_announced_renewed_and_at_the_end_withdrawn(sidecar: Sidecar) -> None:
    beat = sidecar.registration.beat()
    assert (beat.registered, beat.pause_s) == (True, 5.0)
    assert "engine e1 is announced" in beat.told
    sidecar.clock.advance(10.0)
    assert sidecar.registration.beat().told == ""
    assert sidecar.registry.view.member("e1").lease_ends_s == sidecar.clock.wall() + 15
    assert "engine e1 is withdrawn" in sidecar.registration.end()
    assert sidecar.states() == {}
    assert sidecar.registration.end() == "was not registered"


def test_a_restart_of_the_router_is_waited_for_and_the_engine_keeps_its_state(sidecar: Sidecar) -> None:
    sidecar.registration.beat()
    sidecar.registry.change_state("e1", Event.PROVE, "it answered")
    sidecar.stop_router()
    beats = [sidecar.registration.beat() for _ in range(3)]
    assert "Connection refused; trying again" in beats[0].told
    assert [beat.told for beat in beats[1:]] == ["", ""]
    assert {beat.pause_s for beat in beats} == {RETRY_S}
    sidecar.start_router()
    beat = sidecar.registration.beat()
    assert (beat.told, beat.pause_s) == ("engine and router answer again", 5.0)
    assert sidecar.states() == {"e1": State.READY}


def test_a_router_that_forgot_the_engine_is_told_of_it_at_once(sidecar: Sidecar) -> None:
    sidecar.registration.beat()
    sidecar.registry.withdraw("e1", "by mistake")
    assert sidecar.registration.beat().pause_s == 0.0
    assert sidecar.registration.beat().registered
    assert sidecar.states() == {"e1": State.ANNOUNCED}


def test_an_engine_that_is_silent_keeps_its_place(sidecar: Sidecar) -> None:
    sidecar.registration.beat()
    sidecar.registry.change_state("e1", Event.PROVE, "it answered")
    sidecar.shown = (Look.SILENT, None, "no answer within 5 s")
    for _ in range(10):
        beat = sidecar.registration.beat()
        sidecar.clock.advance(beat.pause_s)
        sidecar.registry.tick()
    assert sidecar.states() == {"e1": State.READY}


def test_an_engine_to_which_nobody_listens_is_withdrawn_and_announced_when_it_is_back(sidecar: Sidecar) -> None:
    sidecar.registration.beat()
    sidecar.shown = (Look.REFUSES, None, "connection refused")
    assert sidecar.registration.beat().registered
    beat = sidecar.registration.beat()
    assert (beat.registered, beat.pause_s, beat.told) == (
        False,
        RETRY_S,
        "connection refused; it is withdrawn until it answers",
    )
    assert sidecar.states() == {}
    sidecar.shown = (Look.ANSWERS, engine(1), "")
    assert sidecar.registration.beat().registered


def test_news_of_the_engine_are_announced(sidecar: Sidecar) -> None:
    sidecar.registration.beat()
    sidecar.shown = (Look.ANSWERS, engine(1, models=("qwen3-8b", "lora")), "")
    sidecar.registration.beat()
    assert sidecar.registry.view.member("e1").announcement.models == ("qwen3-8b", "lora")


def test_a_name_that_is_taken_is_tried_again_until_it_is_free(sidecar: Sidecar) -> None:
    sidecar.registry.announce(engine(1, url="http://10.0.0.9:8000"))
    beat = sidecar.registration.beat()
    assert not beat.registered
    assert "the name 'e1' belongs to engine 'e1' at http://10.0.0.9:8000" in beat.told
    sidecar.clock.advance(15.0)
    sidecar.registry.tick()
    assert sidecar.registration.beat().registered


def test_an_announcement_that_the_router_finds_wrong_is_an_error_at_the_first_time_only(sidecar: Sidecar) -> None:
    sidecar.shown = (Look.ANSWERS, engine(1, namespace="ABC"), "")
    with pytest.raises(ConfigError, match="namespace is 'ABC'"):
        sidecar.registration.beat()
    sidecar.shown = (Look.ANSWERS, engine(1), "")
    sidecar.registration.beat()
    sidecar.shown = (Look.ANSWERS, engine(1, namespace="ABC"), "")
    assert "namespace is 'ABC'" in sidecar.registration.beat().told


def test_a_token_is_asked_for_anew_before_each_call(sidecar: Sidecar) -> None:
    sidecar.stop_router()
    sidecar.start_router(Admission("s3cret", loopback=True))
    with pytest.raises(AdmissionError, match="needs the admission token"):
        sidecar.registration.beat()
    sidecar.token = "s3cret"
    assert sidecar.registration.beat().registered
    sidecar.token = "old"
    beat = sidecar.registration.beat()
    assert "trying again" in beat.told
    assert "old" not in beat.told


def test_a_withdrawal_that_fails_says_that_the_lease_will_end(sidecar: Sidecar) -> None:
    sidecar.registration.beat()
    sidecar.stop_router()
    assert "could not withdraw, its lease will end" in sidecar.registration.end()
    sidecar.start_router()


def test_the_client_does_what_people_ask_for(sidecar: Sidecar) -> None:
    client = sidecar.client
    client.announce(engine(1))
    assert client.hold("e1", "drain", "update")["state"] == "draining"
    assert client.engines()["data"][0]["why"] == "update"
    assert client.hold("e1", "readmit", "")["state"] == "announced"
    client.withdraw("e1")
    with pytest.raises(UnknownEngineError):
        client.withdraw("e1")
    client.announce(engine(1))
    with pytest.raises(RefusedError):
        client.announce(engine(2, engine_id="e1"))


@pytest.mark.parametrize("url", ["", "ftp://x", "http://", "http://a:port"])
def test_an_address_of_a_router_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match="is no address of a router"):
        FleetClient(url)


def test_something_else_than_a_router_is_not_taken_for_one(sidecar: Sidecar) -> None:
    client = FleetClient(f"http://127.0.0.1:{sidecar.port}/elsewhere")
    with pytest.raises(RegistryError, match="no such path"):
        client.renew("e1")


def test_a_report_of_a_node_goes_to_its_own_place() -> None:
    got: list[tuple[str, dict[str, object]]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_PUT(self) -> None:
            got.append((self.path, json.loads(self.rfile.read(int(self.headers["Content-Length"])))))
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"{}")

        def log_message(self, format: str, *args: object) -> None:
            """Quiet."""

    with serving(Handler) as url:
        FleetClient(url).report(NodeReport(node="n0", fleet="demo", at_s=5.0))
    ((path, document),) = got
    assert path == "/fleet/nodes/n0"
    assert (document["node"], document["fleet"], document["at_s"]) == ("n0", "demo", 5.0)

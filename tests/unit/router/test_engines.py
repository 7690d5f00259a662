"""What a view of an engine says of it."""

import pytest

from kveik.breaker import OPEN, Breaker
from kveik.fleet.announcement import EngineAnnouncement
from kveik.router.engines import EngineView


@pytest.mark.parametrize(
    ("url", "host_header"),
    [
        ("http://gpu-3.local:8000", b"gpu-3.local:8000"),
        ("http://10.0.0.7:80/", b"10.0.0.7:80"),
        ("http://[fd00::1]:8000", b"[fd00::1]:8000"),
    ],
)
def test_the_host_header_is_the_engines_address(url: str, host_header: bytes) -> None:
    assert EngineView(EngineAnnouncement(url=url), 0).host_header == host_header


def test_the_name_is_the_announced_one_or_the_address() -> None:
    assert EngineView(EngineAnnouncement(url="http://a:1"), 0).name == "a:1"
    assert EngineView(EngineAnnouncement(url="http://a:1", engine_id="gpu"), 0).name == "gpu"


def test_only_a_ready_engine_with_a_closed_breaker_takes_requests() -> None:
    engine = EngineView(EngineAnnouncement(url="http://a:1"), 0)
    assert engine.takes_requests
    engine.breaker = Breaker(state=OPEN)
    assert not engine.takes_requests
    engine.breaker, engine.state = Breaker(), "draining"
    assert not engine.takes_requests

import pytest

from kveik.config import SimEngineSettings
from kveik.engine.process import free_port
from kveik.simulate.server import SimServer
from kveik.watchdog.warm_up import ROUNDS, warm_up
from tests.pages import served_pages


def test_an_engine_answers_one_two_and_four_requests_at_a_time() -> None:
    with SimServer() as engine:
        warmed = warm_up(engine.url, deadline_s=20.0)
        assert warmed.trouble == ""
        assert engine.seen.requests["/v1/completions"] == sum(ROUNDS)
        assert len(engine.app.core.cache) == 0, "nothing of it stays in the cache"


def test_an_engine_that_is_gone_or_hangs_is_said() -> None:
    assert "refused" in warm_up(f"http://127.0.0.1:{free_port()}", deadline_s=1.0).trouble
    with SimServer() as engine:
        engine.change_faults(hang=True)
        warmed = warm_up(engine.url, deadline_s=0.3)
        assert "no answer within 0.3 s" in warmed.trouble
        assert warmed.took_s >= 0.3


@pytest.mark.parametrize(("status", "well"), [(400, True), (404, True), (500, False), (503, False)])
def test_an_engine_that_wants_no_such_request_needs_no_warm_up_by_it(status: int, well: bool) -> None:
    with SimServer() as engine:
        engine.change_faults(status=status)
        assert (warm_up(engine.url, deadline_s=20.0).trouble == "") is well


def test_its_key_is_shown() -> None:
    with SimServer(SimEngineSettings(port=0, api_key="k")) as engine:
        assert warm_up(engine.url, deadline_s=20.0, api_key="k").trouble == ""


def test_nonsense_is_trouble() -> None:
    with served_pages({"/v1/models": (200, "nonsense")}) as url:
        assert warm_up(url, deadline_s=5.0).trouble

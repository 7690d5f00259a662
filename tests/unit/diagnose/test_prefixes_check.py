"""The doctor's check of prompts' beginnings."""

from contextlib import ExitStack
from pathlib import Path

import pytest
from openai import OpenAI

from kveik.config import SimEngineSettings
from kveik.diagnose.prefixes_check import REQUESTS_MIN, check_prefixes, judge_prefixes
from kveik.doctor.check import Outcome
from kveik.doctor.fleet_described import DescribedFleet
from kveik.engine.process import free_port
from kveik.router import prefix_learning
from kveik.router.break_tally import BreakPlace, PrefixesDocument
from kveik.simulate.server import SimServer
from tests.agents import wait_until
from tests.prompts import words
from tests.routers import RouterThread
from tests.unit.doctor.paper_fleet import context_of


def place(share: float, requests: int = 9) -> BreakPlace:
    return BreakPlace(
        "m", "date", "system", "a date changes", "Move it.", requests, 100, 900, share, (1, 1), (7, 7), [], "r", 0.0
    )


def seen(*places: BreakPlace, looked_at: int = 100) -> PrefixesDocument:
    return PrefixesDocument(True, 0.0, 9.0, looked_at, looked_at, 1000, 100, 1, 1, list(places))


def test_what_costs_much_is_a_warning_with_a_remedy() -> None:
    (point,) = judge_prefixes(seen(place(0.4), place(0.01)))
    assert (point.outcome, point.about) == (Outcome.BEWARE, "m")
    assert "a date changes (system prompt, message 1, at token 7): 40% of all prompt tokens" in point.told
    assert point.remedy == "Move it. More: `kveik explain prefixes`"


@pytest.mark.parametrize(
    "document",
    [seen(), seen(place(0.01)), seen(place(0.4, requests=1)), seen(place(0.4), looked_at=3), PrefixesDocument(False)],
    ids=["nothing", "little", "once", "few requests", "switched off"],
)
def test_little_traffic_and_small_losses_raise_no_alarm(document: PrefixesDocument) -> None:
    assert [point.outcome for point in judge_prefixes(document)] == [Outcome.WELL]


def test_a_real_router_is_asked_and_one_that_is_away_is_unknown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prefix_learning, "CORE_SHARE", 1.0)
    away = f"http://127.0.0.1:{free_port()}"
    with ExitStack() as stack:
        sim = stack.enter_context(SimServer(SimEngineSettings(port=0, decode_s=0.0)))
        router = stack.enter_context(RouterThread(tmp_path, [sim.url]))
        client = OpenAI(base_url=f"{router.url}/v1", api_key="none", max_retries=0)
        context = context_of(described=DescribedFleet("paper", routers=(router.url, away)))
        assert [point.outcome for point in check_prefixes(context).points] == [Outcome.UNKNOWN, Outcome.WELL]
        for minute in range(REQUESTS_MIN):
            said = [{"role": "system", "content": f"It is 06:{minute:02}. {words(300, 1)}"}]
            client.chat.completions.create(model="simulated", messages=said, max_tokens=1)  # type: ignore[arg-type]
        wait_until(lambda: "20 of 20" in "".join(check_prefixes(context).evidence), "all requests are looked at", 60)
        verdict = check_prefixes(context)
    assert verdict.outcome is Outcome.BEWARE
    assert "a date or a time changes" in verdict.points[-1].told


def test_a_fleet_without_routers_is_well() -> None:
    assert check_prefixes(context_of(described=DescribedFleet("paper"))).outcome is Outcome.WELL

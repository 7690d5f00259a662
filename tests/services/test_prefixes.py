"""Prefix hygiene through a real router: OpenAI's client at simulated engines, then the page and the command."""

import json
import logging
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from openai import OpenAI

from kveik.cli.main import main
from kveik.config import SimEngineSettings
from kveik.router import prefix_learning
from kveik.router.keys_file import ApiKey, editing, with_key_added, write_keys
from kveik.router.prefix_learning import WAITING_MAX
from kveik.simulate.server import SimServer
from tests.agents import wait_until
from tests.prompts import message, tool, turns, words
from tests.routers import RouterThread

MODEL = "simulated"
RULES = words(500, 1)
TOOLS = [tool(name) for name in ("read", "write", "search", "listing")]
REPEATS = 4
SECRET = "Zanzibar hunter2"


@pytest.fixture(autouse=True)
def hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look at everything at once; how much time that may take is tested elsewhere."""
    monkeypatch.setattr(prefix_learning, "CORE_SHARE", 1.0)
    monkeypatch.setattr(prefix_learning, "SAVED_MAX_S", 1.0)


@pytest.fixture(scope="module")
def engines() -> Iterator[list[str]]:
    with ExitStack() as stack:
        settings = SimEngineSettings(port=0, decode_s=0.0)
        yield [stack.enter_context(SimServer(settings)).url for _ in range(2)]


class Traffic:
    """A router, and clients with keys of their own."""

    def __init__(self, router: RouterThread, keys: dict[str, str]) -> None:
        self.router = router
        self.sent = 0
        self._clients = {
            name: OpenAI(base_url=f"{router.url}/v1", api_key=key, max_retries=0) for name, key in keys.items()
        }

    def chat(self, client: str, *messages: dict[str, Any], **more: Any) -> None:
        """One request; not so many at once that the router would look at a part of them only."""
        listed: Any = list(messages)
        self._clients[client].chat.completions.create(model=MODEL, messages=listed, max_tokens=1, **more)
        self.sent += 1
        wait_until(lambda: self._page()["looked_at"] > self.sent - WAITING_MAX // 2, "most requests are looked at", 60)

    def seen(self) -> dict[str, Any]:
        """What the router shows, once it has looked at everything."""
        wait_until(lambda: self._page()["looked_at"] == self.sent, "all requests are looked at", 60)
        return self._page()

    def _page(self) -> dict[str, Any]:
        with urllib.request.urlopen(f"{self.router.url}/fleet/prefixes", timeout=10) as answer:
            document: dict[str, Any] = json.load(answer)
        return document

    def metrics(self) -> str:
        """The text of /metrics."""
        with urllib.request.urlopen(f"{self.router.url}/metrics", timeout=10) as answer:
            return str(answer.read().decode())


@pytest.fixture
def traffic(engines: list[str], tmp_path: Path) -> Iterator[Traffic]:
    keys = {}
    for name in ("clock-app", "other-app"):
        with editing(tmp_path / "keys.json") as before:
            after, keys[name] = with_key_added(before, ApiKey(name=name))
            write_keys(tmp_path / "keys.json", after)
    with RouterThread(tmp_path, engines, keys_file=str(tmp_path / "keys.json")) as router:
        yield Traffic(router, keys)


def breaking(traffic: Traffic) -> None:
    """Requests with every kind of break, each from an application with prompts of its own."""
    for n in range(REPEATS):
        question = message("user", f"Question {words(6, n)}?")
        for kind, text in (
            ("date", f"It is 2026-11-30 06:2{n}:14. {SECRET}."),
            ("id", f"Session 123e4567-e89b-12d3-a456-42661417400{n}."),
            ("number", f"{1000 + 7 * n} tokens are left."),
            ("whitespace", f"Be{' ' * (n + 1)}kind."),
            ("system", f"You talk to {words(1, n)}."),
        ):
            of_app = words(300, sum(map(ord, kind)))
            traffic.chat("clock-app", message("system", f"For {kind}: {text} {of_app}"), question)
        for app, body, more in others(n):
            rules = message("system", words(300, sum(map(ord, app))))
            traffic.chat("other-app", rules, *(body or [question]), **more)


def others(n: int) -> Iterator[tuple[str, list[dict[str, Any]], dict[str, Any]]]:
    """Applications whose n-th requests break behind the system prompt, or before it: name, messages, more members."""
    yield "shuffles", [], {"tools": [*TOOLS[n:], *TOOLS[:n]]}
    yield "chooses", [], {"tools": [one for at, one in enumerate(TOOLS) if at != n]}
    talk = turns(8, 3)
    yield "reasons", [talk[0], {**talk[1], "reasoning_content": words(80, 70 + n)}, *talk[2:5]], {}
    yield "cuts", turns(9, 4)[2 * n : 2 * n + 9], {}
    yield "puts", [*talk[:n], *([message("user", f"Remember {words(5, n)}.")] if n else []), *talk[n:]], {}
    image = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{n}AAA"}}
    yield "sees", [message("user", [image, {"type": "text", "text": words(300, 88)}])], {}
    yield "salts", [], {"extra_body": {"cache_salt": f"salt {n}"}}
    yield "asks", [message("user", f"Say {words(9, n)} of this.\n{words(400, 99)}")], {}


def test_every_kind_of_break_is_found_ranked_and_given_to_its_client(
    traffic: Traffic, capsys: pytest.CaptureFixture[str]
) -> None:
    breaking(traffic)
    seen = traffic.seen()
    places = {place["kind"]: place for place in seen["places"]}
    assert set(places) >= {
        "date", "id", "number", "whitespace", "system", "tools-order", "tools-changed", "reasoning", "history",
        "inserted", "media", "options", "text",
    }  # fmt: skip
    lost = [place["lost_tokens"] for place in seen["places"]]
    assert lost == sorted(lost, reverse=True)
    assert [share["client"] for share in places["date"]["clients"]] == ["clock-app"]
    assert [share["client"] for share in places["tools-order"]["clients"]] == ["other-app"]
    assert places["date"]["requests"] == REPEATS - 1
    assert 'kveik_router_prefix_tokens_lost_total{kind="date",model="simulated"}' in traffic.metrics()

    assert main(["explain", "prefixes", "--router", traffic.router.url, "--json"]) == 1
    assert {place["kind"] for place in json.loads(capsys.readouterr().out)["places"]} == set(places)
    assert main(["explain", "prefixes", "--router", traffic.router.url, "--top", "2"]) == 1
    shown = capsys.readouterr().out
    assert "tokens lost" in shown
    assert " ".join(shown.split()).count("(last seen ") == 2


def test_clean_traffic_raises_no_alarm(traffic: Traffic, capsys: pytest.CaptureFixture[str]) -> None:
    for user in range(6):
        client = ("clock-app", "other-app")[user % 2]
        talk = turns(4, 30 + user)
        for end in (1, 3, 5, 7):
            traffic.chat(client, message("system", f"{RULES} It is 2026-11-30."), *talk[:end], tools=TOOLS)
        asked = message("user", words(50, user))
        traffic.chat(client, message("system", f"{RULES} It is 2026-11-30."), asked, tools=TOOLS)
        traffic.chat(client, message("user", words(200, 900 + user)))
    seen = traffic.seen()
    assert (seen["places"], seen["lost_tokens"]) == ([], 0)
    assert main(["explain", "prefixes", "--router", traffic.router.url]) == 0
    assert "nothing that changes breaks prefixes" in capsys.readouterr().out


def test_no_text_of_prompts_is_shown_or_logged(
    traffic: Traffic, tmp_path: Path, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    with caplog.at_level(logging.DEBUG, "kveik"):
        breaking(traffic)
        seen = traffic.seen()
    main(["explain", "prefixes", "--router", traffic.router.url])
    logged = [record.getMessage() for record in caplog.records if record.name.startswith("kveik")]
    told = (json.dumps(seen), traffic.metrics(), "\n".join(logged), capsys.readouterr().out)
    for text in told:
        assert not any(word in text for word in ("Zanzibar", "hunter2", RULES[:30], words(9, 1), "salt 1"))


def test_excerpts_are_shown_where_they_are_allowed(engines: list[str], tmp_path: Path) -> None:
    with RouterThread(tmp_path, engines, explain_contents=True) as router:
        traffic = Traffic(router, {"a": "none"})
        for n in range(3):
            traffic.chat("a", message("system", f"It is 06:2{n}. {RULES}"), message("user", "now?"))
        assert traffic.seen()["places"][0]["excerpt"].startswith("It is 06:22. ")


def test_a_router_that_may_not_look_says_so(
    engines: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with RouterThread(tmp_path, engines, explain_prompts=0) as router:
        assert main(["explain", "prefixes", "--router", router.url]) == 0
    assert "router.explain_prompts is 0" in capsys.readouterr().out


def test_the_page_needs_what_the_fleet_s_page_needs(
    engines: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with RouterThread(tmp_path, engines) as router:
        request = urllib.request.Request(f"{router.url}/fleet/prefixes", headers={"X-Forwarded-For": "1.2.3.4"})
        with pytest.raises(urllib.error.HTTPError, match="401"):
            urllib.request.urlopen(request, timeout=10)
        assert main(["explain", "prefixes", "--router", router.url]) == 0
    assert main(["explain", "prefixes", "--router", router.url]) == 3
    assert "Connection refused" in capsys.readouterr().err

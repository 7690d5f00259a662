"""The dashboard in a real browser: what it shows, to whom, and that nothing of it runs that comes from outside."""

import json
import re
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from kveik.fleet.report import EngineReport, EventReport, NodeReport, PartReport, TierReport
from tests.agents import wait_until
from tests.browser import Browser, running_browser
from tests.routers import RouterProcess, SimProcess

TOKEN = "a-token-of-the-fleet"
HOSTILE = "<img src=x onerror=\"document.title='owned'\">"
HOSTILE_SCRIPT = "</td><script>document.title='owned'</script>"
LIVE = "document.getElementById('live').dataset.is === 'live'"
ENGINES = "#engines-table tbody tr"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with running_browser() as browser:
        yield browser


@pytest.fixture(scope="module")
def sim(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SimProcess]:
    with SimProcess(tmp_path_factory.mktemp("sim")) as sim:
        yield sim


class Fleet:
    """A router with engine e1, which is simulated, and what a watchdog would say of it."""

    def __init__(self, folder: Path, sim: SimProcess, token: str = "", **announced: Any) -> None:
        self.sim, self.token = sim, token
        given: dict[str, Any] = {}
        if token:
            (folder / "token").write_text(token)
            given["admission_token_file"] = folder / "token"
        self.router = RouterProcess(folder, prefix_save_s=0, **given)
        self.url = self.router.url
        words = {"url": sim.url, "engine_id": "e1", "models": ["simulated"], "simulated": True, "lease_s": 3000}
        self.send("POST", "/fleet/engines", {**words, **announced})
        wait_until(lambda: bool(self.status()["well"]), "the engine is ready", 60)

    def send(self, method: str, path: str, document: Any = None) -> dict[str, Any]:
        body = None if document is None else msgspec.json.encode(document)
        request = urllib.request.Request(f"{self.url}{path}", body, method=method)
        if self.token:
            request.add_header("authorization", f"Bearer {self.token}")
        with urllib.request.urlopen(request, timeout=20) as answer:
            result: dict[str, Any] = json.load(answer)
        return result

    def status(self) -> dict[str, Any]:
        return self.send("GET", "/fleet/status")

    def ask(self, count: int) -> None:
        chat = {"model": "simulated", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 4}
        for _ in range(count):
            body = json.dumps({**chat, "stream": True, "stream_options": {"include_usage": True}}).encode()
            with urllib.request.urlopen(f"{self.url}/v1/chat/completions", body, timeout=20) as answer:
                answer.read()

    def report(self, **fields: Any) -> None:
        known: dict[str, Any] = {
            "fleet": "demo",
            "engines": (EngineReport(engine_id="e1", condition="ready", kv_use=0.375, restarts=2, running=1),),
            "tiers": (TierReport(name="arena", state="on", blocks=1200, bytes=3 << 30, bytes_max=8 << 30,
                                 read_bytes_s=5e8),),
            "parts": (PartReport(name="agent", kind="agent", state="ready"),),
        }  # fmt: skip
        report = NodeReport(node="n0", at_s=time.time(), **{**known, **fields})
        self.send("PUT", "/fleet/nodes/n0", report)


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory, sim: SimProcess) -> Iterator[Fleet]:
    fleet = Fleet(tmp_path_factory.mktemp("fleet"), sim)
    with fleet.router:
        fleet.ask(20)
        wait_until(lambda: len(fleet.status()["history"]["rows"]) >= 2, "two samples are taken", 60)
        yield fleet


@pytest.fixture
def page(browser: Browser, fleet: Fleet) -> Browser:
    """The dashboard, freshly opened and live."""
    fleet.report()
    shown(browser, fleet.url)
    return browser


def shown(browser: Browser, url: str) -> None:
    browser.asked.clear()
    browser.complaints.clear()
    browser.look()
    browser.open(f"{url}/dashboard")
    browser.wait_for(f"{LIVE} && document.querySelectorAll('{ENGINES}').length > 0")


def test_the_page_shows_engines_tiers_processes_and_events_with_units(page: Browser) -> None:
    engine = page.text(ENGINES)
    for text in ("e1", "simulated", "ready", "37.5 %", "ms", "1 run, 0 wait"):
        assert text in engine
    assert "1,200" in page.text("#tiers-table")
    assert "3 GiB" in page.text("#tiers-table")
    assert "477 MiB/s" in page.text("#tiers-table")
    assert "agent" in page.text("#parts-table")
    assert "engine e1 is ready" in page.text("#events")
    assert "The one engine is simulated" in page.text("#verdict")
    assert re.search(r"\d+ requests/s", page.text("#tiles").replace("\u00a0", " ").replace("\n", " "))
    assert page.complaints == []


def test_the_page_asks_nobody_but_its_router(page: Browser, fleet: Fleet) -> None:
    page.wait_for("performance.getEntriesByType('resource').length >= 2")
    assert {url.partition("?")[0] for url in page.asked if not url.startswith("data:")} == {
        f"{fleet.url}/dashboard", f"{fleet.url}/fleet/status"
    }  # fmt: skip


def test_every_plot_has_axes_a_unit_and_lines(page: Browser) -> None:
    plots = page.run(
        "[...document.querySelectorAll('.chart')].map(c => ({title: c.querySelector('h3').innerText,"
        " marks: [...c.querySelectorAll('.plot text')].map(t => t.textContent), label: c.querySelector('.plot')"
        ".getAttribute('aria-label'), lines: c.querySelectorAll('.plot path.line, .plot circle').length}))"
    )
    assert [plot["title"] for plot in plots] == [
        "Requests requests/s", "Time to first token ms", "In flight requests", "Output tokens/s", "Prompts tokens/s",
        "Cached prompt tokens %",
    ]  # fmt: skip
    for plot in plots:
        assert plot["marks"][0] == "0"
        assert any(re.fullmatch(r"\d\d:\d\d", mark) for mark in plot["marks"])
        assert "over ten minutes. Last:" in plot["label"]
        assert plot["lines"] >= 1, plot


def test_the_mouse_reads_values_with_their_unit_and_time(page: Browser) -> None:
    x, y = page.run(
        "(() => { const plot = document.querySelector('.plot'); plot.scrollIntoView(); const box ="
        " plot.getBoundingClientRect(); return [box.right - 12, box.top + 40]; })()"
    )
    page.move_mouse(x, y)
    page.wait_for("!document.querySelector('.tip').hidden")
    assert re.match(r"\d\d:\d\d:\d\d\s+ended\s+[\d.]+ requests/s", page.text(".tip"))
    left, top, right = page.run(
        "(() => { const box = document.querySelector('.tip').getBoundingClientRect();"
        " return [box.left, box.top, box.right]; })()"
    )
    assert left < right < x < right + 40, "beside the mouse, on the side that has room"
    assert top < y < top + 60
    page.move_mouse(1, 1)
    page.wait_for("document.querySelector('.tip').hidden")


def test_keys_read_the_same_values_aloud(page: Browser) -> None:
    page.run("document.querySelector('.plot').focus()")
    page.key("ArrowLeft")
    page.wait_for("document.getElementById('spoken').textContent.includes('requests/s')")
    page.key("Escape")
    assert page.run("document.querySelector('.tip').hidden")


def test_a_screen_reader_finds_headings_tables_and_what_plots_show(page: Browser) -> None:
    named = {(node["role"]["value"], node.get("name", {}).get("value", "")) for node in page.accessibility_tree()}
    for heading in ("Engines", "Tiers", "Processes", "Events", "Last ten minutes"):
        assert ("heading", heading) in named
    for table in ("Engines of the fleet", "Tiers of the shared cache", "Processes that supervisors keep"):
        assert ("table", table) in named
    assert sum(role in {"image", "img"} and "Last:" in name for role, name in named) == 6
    assert {role for role, name in named if not name} & {"button", "link", "textbox"} == set()
    assert any(role == "rowheader" for role, _ in named)


def test_both_schemes_are_dressed(page: Browser) -> None:
    grounds = []
    for dark in (False, True):
        page.look(dark=dark)
        grounds.append(page.run("getComputedStyle(document.body).backgroundColor"))
    assert grounds == ["rgb(244, 246, 248)", "rgb(14, 19, 25)"]


@pytest.mark.parametrize("width", [320, 390, 768, 1024, 1360, 2560])
def test_nothing_is_cut_at_any_width(page: Browser, width: int) -> None:
    page.look(width=width)
    page.wait_for(f"innerWidth === {width}")
    assert page.run("document.documentElement.scrollWidth") <= width
    if width >= 1360:
        assert page.run(
            "(() => { const b = document.querySelector('.wide'); return b.scrollWidth <= b.clientWidth })()"
        )


def test_a_selection_outlives_the_next_answers(page: Browser) -> None:
    page.run("getSelection().selectAllChildren(document.querySelector('#engines-table .chip'))")
    asked = page.run("performance.getEntriesByType('resource').length")
    page.wait_for(f"performance.getEntriesByType('resource').length >= {asked} + 2")
    assert page.run("getSelection().toString()") == "ready"


def test_without_a_watchdog_it_says_what_is_not_known(browser: Browser, tmp_path: Path, sim: SimProcess) -> None:
    fleet = Fleet(tmp_path, sim)
    with fleet.router:
        shown(browser, fleet.url)
        assert "no watchdog reports here" in browser.text("#verdict")
        assert "no watchdog reports this engine" in browser.text(ENGINES)
        assert "No watchdog reports to this router." in browser.text("#tiers-table")
        assert browser.complaints == []


def test_what_is_not_well_stands_at_the_top(browser: Browser, tmp_path: Path, sim: SimProcess) -> None:
    fleet = Fleet(tmp_path, sim)
    with fleet.router:
        fleet.report(engines=(EngineReport(engine_id="e1", condition="hung", why="nothing moves"),))
        fleet.send("POST", "/fleet/engines/e1/isolate", {"reason": "hung: nothing moves"})
        shown(browser, fleet.url)
        browser.wait_for("document.querySelector('.verdict.bad') !== null")
        assert "One thing is not well" in browser.text("#verdict")
        assert "engine e1 is isolated: hung: nothing moves; its watchdog calls it hung" in browser.text("#verdict")
        assert "isolated" in browser.text(ENGINES)


def test_names_and_reasons_from_outside_are_text_and_never_run(
    browser: Browser, tmp_path: Path, sim: SimProcess
) -> None:
    fleet = Fleet(tmp_path, sim, models=["simulated", HOSTILE, HOSTILE_SCRIPT])
    with fleet.router:
        fleet.report(
            fleet=HOSTILE,
            engines=(EngineReport(engine_id="e1", condition=HOSTILE, why=HOSTILE_SCRIPT, degraded=HOSTILE,
                                  warnings=(HOSTILE_SCRIPT,)),),
            tiers=(TierReport(name=HOSTILE, state=HOSTILE_SCRIPT),),
            parts=(PartReport(name=HOSTILE, kind=HOSTILE, state=HOSTILE_SCRIPT, why=HOSTILE),),
            events=(EventReport(at_s=time.time(), part=HOSTILE, told=HOSTILE_SCRIPT),),
        )  # fmt: skip
        fleet.send("POST", "/fleet/engines/e1/drain", {"reason": HOSTILE})
        shown(browser, fleet.url)
        browser.wait_for("document.querySelector('#engines-table').innerText.includes('draining')")
        for part in ("#engines-table", "#tiers-table", "#parts-table", "#events", "#verdict", "#fleet"):
            assert "<img src=x onerror" in browser.text(part), part
        assert browser.run("document.querySelectorAll('img, td script, iframe').length") == 0
        assert "owned" not in browser.run("document.title").replace(HOSTILE, "")
        assert browser.complaints == []


def test_even_a_script_that_got_into_the_page_would_not_run(page: Browser) -> None:
    ways = (
        "const s = document.createElement('script'); s.append('window.owned = 1'); document.body.append(s)",
        "const s = document.createElement('script'); s.text = 'window.owned = 2'; document.body.append(s)",
        "document.body.insertAdjacentHTML('beforeend', '<img src=x onerror=\"window.owned = 3\">')",
        "const b = document.getElementById('spoken'); b.setAttribute('onclick', 'window.owned = 4'); b.click()",
        "new Function('window.owned = 5')()",
    )
    for way in ways:
        page.run(f"(() => {{ try {{ {way}; }} catch {{ /* refused */ }} }})()")
        assert page.run("window.owned === undefined"), way
    page.complaints.clear()  # the browser says that it refused them


def test_without_the_token_the_page_holds_no_data_and_with_it_shows_all(
    browser: Browser, tmp_path: Path, sim: SimProcess
) -> None:
    fleet = Fleet(tmp_path, sim, token=TOKEN)
    with fleet.router:
        with urllib.request.urlopen(f"{fleet.url}/dashboard") as answer:
            html = answer.read().decode()
        assert "e1" not in re.findall(r"\be1\b", re.sub(r"(?s)<script>.*?</script>", "", html))
        with pytest.raises(urllib.error.HTTPError, match="401"):
            urllib.request.urlopen(f"{fleet.url}/fleet/status")
        browser.asked.clear()
        browser.complaints.clear()
        browser.open(f"{fleet.url}/dashboard")
        browser.wait_for("document.activeElement.id === 'token'")
        assert not browser.run("document.getElementById('content').checkVisibility()")
        type_token(browser, "not-the-token")
        browser.wait_for("document.getElementById('gate-why').textContent === 'The router does not take this token.'")
        type_token(browser, TOKEN)
        browser.wait_for(f"{LIVE} && document.querySelectorAll('{ENGINES}').length === 1")
        assert "e1" in browser.text("#engines-table")

        browser.open(f"{fleet.url}/dashboard?again")
        browser.wait_for(f"{LIVE} && document.querySelectorAll('{ENGINES}').length === 1")
        assert TOKEN not in "".join(browser.asked), "the token must not be in an address"
        assert browser.run("[localStorage.length, document.cookie]") == [0, ""]

        browser.run("document.getElementById('forget').click()")
        browser.wait_for("document.activeElement.id === 'token'")
        assert browser.run("sessionStorage.length") == 0
        assert "e1" not in browser.run("document.getElementById('content').textContent")
        assert browser.complaints == []


def type_token(browser: Browser, text: str) -> None:
    browser.run("document.getElementById('token').focus()")
    browser.write(text)
    browser.key("Enter")


@pytest.mark.slow
def test_the_page_outlives_a_restart_of_its_router_and_says_so(page: Browser, fleet: Fleet) -> None:
    page.wait_for("page.rows.length >= 2")
    fleet.router.kill()
    page.wait_for("document.getElementById('live').dataset.is === 'away'")
    assert re.match(r"The router does not answer, last answer at \d\d:\d\d:\d\d: trying again", page.text("#live"))
    assert "e1" in page.text("#engines-table"), "what was known stays, pale"
    assert page.run("document.body.classList.contains('stale')")
    fleet.router.start()
    page.wait_for(LIVE)
    page.wait_for("page.rows.length >= 1 && page.before.length >= 2")
    assert not page.run("document.body.classList.contains('stale')")
    assert page.complaints == []
    wait_until(lambda: bool(fleet.status()["well"]), "the engine is ready again", 60)

"""`kveik status` against real routers and a real control socket."""

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kveik.cli import main
from kveik.engine.process import free_port
from kveik.fleet.client import FleetClient
from kveik.fleet.report import EngineReport, NodeReport, PartReport
from kveik.supervise.control import ControlServer
from kveik.supervise.messages import ProcessView, StatusAnswer
from tests.pages import served_pages
from tests.routers import RouterThread, SimProcess


@pytest.fixture(scope="module")
def router(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RouterThread]:
    folder = tmp_path_factory.mktemp("status")
    with SimProcess(folder) as sim, RouterThread(folder, [sim.url]) as router:
        yield router


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a folder without a configuration."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")


def engine_id(router: RouterThread) -> str:
    return str(router.fleet()["engines"][0]["id"])


def told(router: RouterThread, condition: str, node: str = "n0", **fields: Any) -> None:
    report = NodeReport(
        node=node, fleet="demo", at_s=time.time(),
        engines=(EngineReport(engine_id=engine_id(router), condition=condition, kv_use=0.5),), **fields,
    )  # fmt: skip
    FleetClient(router.url).report(report)


def test_a_fleet_that_is_well_exits_with_0(router: RouterThread, capsys: pytest.CaptureFixture[str]) -> None:
    told(router, "ready")
    assert main.main(["status", "--router", router.url]) == 0
    text = capsys.readouterr().out
    assert "all is well" in text
    assert engine_id(router) in text
    assert "50 %" in text


def test_a_part_that_is_not_well_exits_with_1_and_says_which(
    router: RouterThread, capsys: pytest.CaptureFixture[str]
) -> None:
    told(router, "ready", parts=(PartReport(name="agent", kind="agent", state="waiting", why="it was killed"),))
    assert main.main(["status", "--router", router.url]) == 1
    assert "not well: agent on node n0 is waiting: it was killed" in capsys.readouterr().out
    told(router, "ready")


def test_a_sick_engine_exits_with_1(router: RouterThread, capsys: pytest.CaptureFixture[str]) -> None:
    told(router, "hung")
    assert main.main(["status", "--router", router.url, "--json"]) == 1
    document = json.loads(capsys.readouterr().out)
    assert document["well"] is False
    assert document["router"] == router.url
    assert document["fleet"]["engines"][0]["report"]["condition"] == "hung"
    assert document["fleet"]["history"]["rows"] == []
    told(router, "ready")


def test_no_router_exits_with_3_and_says_why(capsys: pytest.CaptureFixture[str]) -> None:
    url = f"http://127.0.0.1:{free_port()}"
    assert main.main(["status", "--router", url]) == 3
    assert "no router says how the fleet is" in capsys.readouterr().out
    assert main.main(["status", "--router", url, "--json"]) == 3
    document = json.loads(capsys.readouterr().out)
    assert (document["fleet"], document["supervisor"]) == (None, None)
    assert "refused" in document["routers_away"][url]


def test_without_any_word_where_it_is_the_router_of_this_machine_is_asked(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, router: RouterThread
) -> None:
    monkeypatch.setenv("KVEIK_ROUTER_PORT", router.url.rpartition(":")[2])
    assert main.main(["status"]) == 0
    assert router.url in capsys.readouterr().out


def test_one_router_of_several_that_is_away_is_not_well(
    router: RouterThread, capsys: pytest.CaptureFixture[str]
) -> None:
    away = f"http://127.0.0.1:{free_port()}"
    assert main.main(["status", "--router", away, "--router", router.url]) == 1
    text = capsys.readouterr().out
    assert "not well: another router:" in text
    assert engine_id(router) in text


def test_what_is_no_router_is_told(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    with SimProcess(tmp_path) as sim:
        assert main.main(["status", "--router", sim.url]) == 3
    assert "no router says how the fleet is" in capsys.readouterr().out


def test_a_router_of_another_version_is_told_as_such(capsys: pytest.CaptureFixture[str]) -> None:
    with served_pages({"/fleet/status?history=no": (200, '{"fleet": 5}')}) as url:
        assert main.main(["status", "--router", url]) == 3
    assert "shows the fleet in a way that is not understood here" in capsys.readouterr().out


@pytest.mark.parametrize(
    "arguments", [["--router", "ftp://x"], ["--every", "0"], ["--config", "none.toml"], ["--token-file", "none"]]
)
def test_wrong_use_exits_with_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["status", *arguments]) == 2
    assert capsys.readouterr().err.startswith("kveik status: ")


def test_the_token_comes_from_file_configuration_or_environment(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    token = tmp_path / "token"
    token.write_text("a-secret")
    config = tmp_path / "fleet.toml"
    with SimProcess(tmp_path) as sim:
        port = free_port()
        monkeypatch.setattr(RouterThread, "fleet", lambda _: {"engines": [{"state": "ready"}]})
        with RouterThread(tmp_path, [sim.url], port=port, admission_token_file=str(token)) as router:
            assert main.main(["status", "--router", router.url]) == 3
            assert "needs the admission token" in capsys.readouterr().out
            assert main.main(["status", "--router", router.url, "--token-file", str(token)]) in {0, 1}
            config.write_text(f'[router]\nport = {port}\nadmission_token_file = "{token}"\n[engine]\nmodel = "m"\n')
            assert main.main(["status", "--config", str(config)]) in {0, 1}
            monkeypatch.setenv("KVEIK_ADMISSION_TOKEN", "a-secret")
            assert main.main(["status", "--router", router.url]) in {0, 1}
    assert "a-secret" not in capsys.readouterr().out


def test_where_no_router_answers_the_supervisor_s_processes_are_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "kveik.toml").write_text(
        f'[fleet]\nstate_folder = "{tmp_path}"\n[router]\nport = {free_port()}\n[engine]\nmodel = "m"\n'
    )
    (tmp_path / "local").mkdir(mode=0o700)
    process = ProcessView(name="router", kind="router", state="failed", why="the port is taken")
    answer = StatusAnswer(fleet="kveik", node="local", pid=7, config="kveik.toml", processes=(process,))
    server = ControlServer(str(tmp_path / "local" / "control.sock"), lambda _: answer).start()
    try:
        assert main.main(["status"]) == 3
        text = capsys.readouterr().out
        assert "The supervisor of node local (process 7) keeps" in text
        assert "the port is taken" in text
        assert main.main(["status", "--json"]) == 3
        assert json.loads(capsys.readouterr().out)["supervisor"]["processes"][0]["why"] == "the port is taken"
    finally:
        server.close()


def test_watching_shows_it_again_and_again_and_ends_with_the_last_answer(
    router: RouterThread, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    told(router, "ready")
    rounds = iter(range(3))

    def pause(_: float) -> None:
        if next(rounds, None) is None:
            raise KeyboardInterrupt

    monkeypatch.setattr("kveik.cli.status.time.sleep", pause)
    assert main.main(["status", "--router", router.url, "--watch", "--json"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [json.loads(line)["well"] for line in lines] == [True] * 4
    rounds = iter(range(1))
    assert main.main(["status", "--router", router.url, "--watch"]) == 0
    assert capsys.readouterr().out.count("all is well") == 2

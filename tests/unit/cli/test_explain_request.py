"""``kveik explain request``: what an agent and a router remember of one request."""

import json
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from kveik.agent.client import AgentClient
from kveik.cli.main import main
from kveik.clock import Deadline
from kveik.engine.process import free_port
from kveik.launch.fleet_spec import read_fleet
from kveik.supervise.node_folder import node_folder
from tests.agents import connected, running_agent
from tests.funnels import lacking, prompt, told
from tests.routers import RouterThread, SimProcess

BEFORE = told("before", prompt(700), 10.0)
ASKED = told("asked", [9, *prompt(700)[1:]], 50.0, missing=lacking(0))


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[AgentClient]:
    """An agent, and the connection of an engine that told it of two requests."""
    with running_agent(tmp_path):
        client = connected(tmp_path, "scheduler", label="model")
        client.tell_requests([BEFORE, ASKED])
        client.stats(Deadline.after(10))  # answers come in order: the agent has heard of them
        yield client
        client.close()


def explain(folder: Path, *arguments: str) -> int:
    return main(["explain", "request", *arguments, "--socket", str(folder / "agent.sock")])


def test_a_request_is_explained_with_its_stages_and_one_sentence(
    engine: AgentClient, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert explain(tmp_path, "asked") == 0
    told = capsys.readouterr().out
    assert "request asked at model" in told
    assert "0 of 700 prompt tokens came from a cache" in told
    assert "> known" in told
    assert "differs from that of request before at its very beginning" in " ".join(told.split())


def test_programs_get_json(engine: AgentClient, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert explain(tmp_path, "cmpl-asked-0-0123abcd", "--json") == 0
    (one,) = json.loads(capsys.readouterr().out)["requests"]
    assert (one["ate"], one["cause"], one["engine"]) == ("known", "first_tokens_differ", "model")


def test_the_latest_are_listed_the_last_one_first(
    engine: AgentClient, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert explain(tmp_path, "--last", "5") == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if "│" in line]
    assert ["asked" in lines[0], "first_tokens_differ" in lines[0], "before" in lines[1]] == [True, True, True]
    assert explain(tmp_path, "--last", "1", "--json") == 0
    assert len(json.loads(capsys.readouterr().out)["requests"]) == 1


def test_a_request_that_nobody_remembers_gives_one(
    engine: AgentClient, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert explain(tmp_path, "other") == 1
    assert "no request other is remembered here: the agent keeps the latest 2" in capsys.readouterr().err


def test_without_an_agent_it_could_not_be_done(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert explain(tmp_path, "asked") == 3
    assert "no agent at" in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments", [(), ("asked", "--last", "3"), ("--last", "-1")], ids=["none", "both", "negative"]
)
def test_an_id_or_a_number_is_wanted(
    arguments: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert explain(tmp_path, *arguments) == 2
    assert "give an ID, or --last" in capsys.readouterr().err


def test_an_agent_that_was_told_of_nothing_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with running_agent(tmp_path):
        assert explain(tmp_path, "--last", "3") == 1
    assert "remembers no request yet" in capsys.readouterr().err


def test_what_the_router_saw_of_it_is_told_too(
    engine: AgentClient, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with SimProcess(tmp_path) as simulated, RouterThread(tmp_path, [simulated.url]) as router:
        for name in ("asked", "elsewhere"):
            body = json.dumps({"model": "simulated", "prompt": "Good morning", "max_tokens": 1}).encode()
            headers = {"content-type": "application/json", "x-request-id": name}
            urllib.request.urlopen(urllib.request.Request(f"{router.url}/v1/completions", body, headers), timeout=20)
        assert explain(tmp_path, "asked", "--router", router.url) == 0
        assert "the router chose" in capsys.readouterr().out
        assert explain(tmp_path, "elsewhere", "--router", router.url) == 1
        assert "of which this node's agent has no record" in capsys.readouterr().err
    assert explain(tmp_path, "asked", "--router", router.url) == 0
    assert "note: no router told of its requests" in capsys.readouterr().err


def test_a_setting_that_is_not_valid_is_wrong_use(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = tmp_path / "kveik.toml"
    config.write_text("[agent]\nno_such_setting = 1\n")
    assert main(["explain", "request", "asked", "--config", str(config)]) == 2
    assert "no_such_setting" in capsys.readouterr().err


def test_a_fleets_configuration_says_where_its_agent_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config, state = tmp_path / "kveik.toml", tmp_path / "state"
    port = free_port()  # where no router is
    config.write_text(f'[fleet]\nstate_folder = "{state}"\n[engine]\nmodel = "m"\n[router]\nport = {port}\n')
    spec = read_fleet(config, {})
    socket = node_folder(spec.settings, spec.node.name).agent_socket
    socket.parent.mkdir(parents=True)
    with running_agent(tmp_path, socket=str(socket)):
        client = AgentClient.connect(str(socket), role="scheduler", prefault=False)
        client.tell_requests([ASKED])
        client.stats(Deadline.after(10))
        assert main(["explain", "request", "asked", "--config", str(config), "--json"]) == 0
        assert "no router told" in capsys.readouterr().err
        client.close()

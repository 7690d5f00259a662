"""``kveik breakeven``: what agent and engines learned, for people, for programs and as a picture."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from kveik.agent.client import AgentClient
from kveik.agent.protocol import EngineRates, Located, TierGain
from kveik.bench.breakeven import Crossing
from kveik.cli import main
from kveik.cli.breakeven import crossing_text
from kveik.clock import Deadline
from tests.agents import NAMESPACE, connected, load_blocks, running_agent, some_keys, store_blocks, wait_until

LEARNED = EngineRates(
    prefill=[0.01, 1e-3, 0.0],
    prefill_sigma=0.1,
    prefill_steps=12,
    step_tokens=2048,
    token_bytes=20_000.0,
    path=[0.004, 1e-9],
    path_sigma=0.2,
    gains={"arena": TierGain(4096, 3.5, 0.25)},
)


def tell(engine: AgentClient, learned: EngineRates) -> None:
    future = engine.submit_lookup(NAMESPACE, [0], [(0, [b"h" * 32])], 5.0, learned)
    engine.wait(future, Located, Deadline.after(10))


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """A node whose engine has learned, and whose folder tier was read once."""
    with running_agent(tmp_path, filesystem=str(tmp_path / "blocks")) as agent:
        engine = connected(tmp_path, role="scheduler", label="small")
        keys = some_keys(4)
        store_blocks(engine, keys)
        assert agent.lower.drain(10.0)
        wait_until(lambda: agent.arena.stats().pinned == 0, "all is written")
        agent.arena.drop_namespace(b"")
        assert load_blocks(engine, keys) == ["hit"] * 4
        tell(engine, LEARNED)
        yield tmp_path
        engine.close()


def test_the_table_shows_curves_crossings_and_gains(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["breakeven", "--socket", str(folder / "agent.sock")]) == 0
    text = capsys.readouterr().out
    for shown in ("small, process", "131,072", "from arena", "filesystem", "any length", "4,096", "3.5 s", "+3.2 s"):
        assert shown in text


def test_programs_get_the_same_as_json(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["breakeven", "--json", "--socket", str(folder / "agent.sock")]) == 0
    shown = json.loads(capsys.readouterr().out)
    (engine,) = shown["engines"]
    assert set(engine["load"]) == {"arena", "filesystem"}
    assert engine["load"]["filesystem"]["samples"] >= 1
    assert shown["gains"]["arena"] == {"tokens": 4096, "saved_s": 3.5, "lost_s": 0.25}


def test_a_picture_is_drawn(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    picture = folder / "curves.png"
    assert main.main(["breakeven", "--plot", str(picture), "--socket", str(folder / "agent.sock")]) == 0
    assert picture.read_bytes().startswith(b"\x89PNG")
    nowhere = str(folder / "missing" / "curves.png")
    assert main.main(["breakeven", "--plot", nowhere, "--socket", str(folder / "agent.sock")]) == 3
    assert "cannot write" in capsys.readouterr().err


def test_before_anything_was_learned_the_answer_is_no(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with running_agent(tmp_path):
        assert main.main(["breakeven", "--socket", str(tmp_path / "agent.sock")]) == 1
    assert "ask again later" in capsys.readouterr().err


def test_no_agent_exits_with_3(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["breakeven", "--socket", str(tmp_path / "agent.sock")]) == 3
    assert "no agent at" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("found", "text"),
    [
        (Crossing(None, None, None), "never"),
        (Crossing(None, 9000, None), "never; at best 9,000"),
        (Crossing(1, 1, 200), "any length"),
        (Crossing(1200, 900, 1700), "1,200 (900 to 1,700)"),
        (Crossing(1200, 900, None), "1,200 (900 to never)"),
    ],
)
def test_crossings_are_told_in_words(found: Crossing, text: str) -> None:
    assert crossing_text(found) == text

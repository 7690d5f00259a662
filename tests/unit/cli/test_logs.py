"""``kveik logs``: whose, how many lines, and what comes."""

from pathlib import Path

import pytest

from kveik.cli.main import main
from tests.fleets import SimFleet


@pytest.fixture
def config(tmp_path: Path) -> str:
    fleet = SimFleet(tmp_path)
    folder = fleet.launch.folder.logs
    folder.mkdir(parents=True)
    (folder / "router.log").write_text("one\ntwo\nthree\n")
    (folder / "engine-1.log").write_text("a\nb\n")
    return str(fleet.config)


def test_all_logs_are_shown_with_their_names(config: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["logs", "--config", config, "-n", "2"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "engine-1 | a",
        "engine-1 | b",
        "router   | two",
        "router   | three",
    ]


def test_one_log_is_shown_as_it_is(config: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["logs", "router", "--config", config, "-n", "1"]) == 0
    assert capsys.readouterr().out == "three\n"
    assert main(["logs", "router", "--config", config, "-n", "0"]) == 0
    assert capsys.readouterr().out == ""


def test_a_log_that_is_not_there_is_named_beside_those_that_are(
    config: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["logs", "watchdog", "--config", config]) == 3
    assert "no log of watchdog in" in (said := capsys.readouterr().err)
    assert "there are engine-1, router" in said


def test_where_nothing_ever_ran_that_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["logs", "--config", str(SimFleet(tmp_path).config)]) == 3
    assert "no log of any part" in capsys.readouterr().err


def test_wrong_use_is_told(config: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["logs", "--config", config, "-n", "-1"]) == 2
    assert main(["logs", "--config", str(tmp_path / "none.toml")]) == 2
    assert "cannot read" in capsys.readouterr().err


def test_what_comes_is_followed_until_ctrl_c(
    config: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    log = next(Path(config).parent.glob("s/*/logs/router.log"))
    pieces = iter(["four\nfi", "ve\n"])

    def pause(seconds: float) -> None:
        piece = next(pieces, None)
        if piece is None:
            raise KeyboardInterrupt
        with log.open("a") as file:
            file.write(piece)

    monkeypatch.setattr("time.sleep", pause)
    assert main(["logs", "router", "--config", config, "-f", "-n", "0"]) == 130
    assert capsys.readouterr().out == "four\nfive\n"

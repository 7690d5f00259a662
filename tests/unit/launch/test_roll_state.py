"""What a roll leaves for the next one."""

from pathlib import Path

import pytest

from kveik.errors import RollError
from kveik.launch.roll_plan import RollState, Version
from kveik.launch.roll_state import RollNotebook

STATE = RollState(
    config="1", asked=("a", "b"), done=("a",), in_hand="b", stage="verify", proved=(Version("0.32", "ab", "x"),)
)


def test_the_next_roll_finds_what_the_last_one_left(tmp_path: Path) -> None:
    with RollNotebook(tmp_path / "n" / "roll.json") as notebook:
        assert notebook.read() is None
        notebook.write(STATE)
    with RollNotebook(tmp_path / "n" / "roll.json") as notebook:
        assert notebook.read() == STATE
        notebook.forget()
        notebook.forget()
        assert notebook.read() is None


def test_only_one_roll_runs_at_a_time(tmp_path: Path) -> None:
    path = tmp_path / "n" / "roll.json"
    with RollNotebook(path), pytest.raises(RollError, match="another kveik roll is at work"), RollNotebook(path):
        pass
    with RollNotebook(path):
        pass


@pytest.mark.parametrize("content", [b"", b"{", b'{"config": 7}', b'{"config": "1", "later": true}', b"[" * 100_000])
def test_a_file_that_is_not_understood_is_taken_for_none(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "n" / "roll.json"
    with RollNotebook(path) as notebook:
        path.write_bytes(content)
        assert notebook.read() is None
        notebook.write(STATE)
        assert notebook.read() == STATE


def test_a_folder_that_cannot_be_written_is_an_error_that_names_the_file(tmp_path: Path) -> None:
    path = tmp_path / "n" / "roll.json"
    with RollNotebook(path) as notebook:
        path.with_name(".roll.json.tmp").mkdir()
        with pytest.raises(RollError, match=r"roll\.json"):
            notebook.write(STATE)


def test_others_cannot_read_it(tmp_path: Path) -> None:
    with RollNotebook(tmp_path / "n" / "roll.json") as notebook:
        notebook.write(STATE)
    assert notebook.path.stat().st_mode & 0o077 == 0

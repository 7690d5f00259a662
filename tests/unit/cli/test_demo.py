"""``kveik demo`` fails early and clearly where it cannot run."""

from pathlib import Path

import pytest

from kveik.cli.main import main


def test_without_a_model_it_says_which_file_is_missing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "--model", str(tmp_path), "--output", str(tmp_path / "out")]) == 3
    assert "kveik demo: " in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("lengths", ["", "0", "512,many"])
def test_lengths_that_are_none_are_wrong_use(lengths: str, tmp_path: Path) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["demo", "--model", str(tmp_path), "--lengths", lengths])
    assert caught.value.code == 2

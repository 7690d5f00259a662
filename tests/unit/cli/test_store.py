"""``kveik store``: what is said before anything starts. The real thing is in tests/services."""

import argparse

import pytest

from kveik.cli.main import main
from kveik.cli.store import TRIALS, _size


@pytest.mark.parametrize(("text", "size"), [("64MiB", 64 << 20), ("2GiB", 2 << 30), ("1.5 GiB", 3 << 29)])
def test_memory_is_given_with_its_unit(text: str, size: int) -> None:
    assert _size(text) == size


@pytest.mark.parametrize("text", ["", "2", "2GB", "GiB", "-1GiB", "1MiB", "lots"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="such as 2GiB"):
        _size(text)


def test_the_help_names_every_store_and_how_it_ends(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["store", "--help"])

    told = capsys.readouterr().out
    assert all(f"kveik store {name} up" in told for name in TRIALS)
    assert "Ctrl-C" in told


def test_a_store_that_is_unknown_is_wrong_use(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["store", "punchcards", "up"])

    assert ended.value.code == 2


def test_a_wait_that_is_none_is_wrong_use(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["store", "mooncake", "up", "--patience-s", "0"]) == 2
    assert "--patience-s is 0" in capsys.readouterr().err

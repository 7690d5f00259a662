"""Servers of a fleet start as by `vllm serve`, with what only that command knows."""

import argparse
import sys
from pathlib import Path

import pytest
from vllm.entrypoints.cli.serve import ServeSubcommand

from kveik.connector import serve


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> list[argparse.Namespace]:
    """What would be served."""
    found: list[argparse.Namespace] = []
    monkeypatch.setattr(ServeSubcommand, "cmd", staticmethod(found.append))
    return found


def test_ranks_without_an_api_server_are_known(
    served: list[argparse.Namespace], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(sys, "argv", ["serve", str(tmp_path), "--headless", "--data-parallel-size", "2"])
    serve.main()
    (args,) = served
    assert (args.headless, args.data_parallel_size, args.model_tag) == (True, 2, str(tmp_path))


def test_an_argument_that_vllm_does_not_know_ends_it_with_its_name(
    served: list[argparse.Namespace], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["serve", "/models/m", "--no-such"])
    with pytest.raises(SystemExit, match="2"):
        serve.main()
    assert "error: unrecognized arguments: --no-such" in capsys.readouterr().err
    assert served == []

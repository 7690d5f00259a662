import re
import sys

import pytest

from kveik.cli.progress import progress_printer


def test_progress_goes_to_stderr_behind_the_seconds_since_the_start(capsys: pytest.CaptureFixture[str]) -> None:
    progress_printer()("the engine starts")
    told = capsys.readouterr()
    assert told.out == ""
    assert re.fullmatch(r"\[   0\.\d s\] the engine starts\n", told.err)


def test_a_command_whose_result_is_its_progress_says_it_on_stdout(capsys: pytest.CaptureFixture[str]) -> None:
    progress_printer(sys.stdout)("an engine is killed")
    assert capsys.readouterr().out.endswith(" s] an engine is killed\n")

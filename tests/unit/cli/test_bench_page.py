"""The page about ``kveik bench`` and its help agree with what the command does."""

import itertools
import re
from dataclasses import fields
from pathlib import Path

import pytest

from kveik.bench import comparison, measuring, run_findings
from kveik.bench.bench_report import ROWS, document
from kveik.bench.comparison import compare
from kveik.bench.made_workloads import GrowingChats, PrefixRepetition, SharedDocuments
from kveik.bench.mooncake_trace import TraceScale
from kveik.cli.main import main
from tests.bench_runs import run_of
from tests.unit.bench.test_bench_report import about

PAGE = Path(__file__).resolve().parents[3] / "docs" / "bench.md"
TEXT = PAGE.read_text(encoding="utf8")
WORKLOADS = {"prefix": PrefixRepetition, "documents": SharedDocuments, "chats": GrowingChats, "trace": TraceScale}


def row(name: str) -> str:
    """The row of a table that begins with a name."""
    (found,) = (line for line in TEXT.splitlines() if line.startswith(f"| `{name}`"))
    return found


def names_in(heading: str) -> set[str]:
    """What stands in backticks in the first cells of the table under a heading."""
    section = TEXT.split(f"## {heading}\n")[1].split("\n## ")[0]
    cells = [line.split("|")[1] for line in section.splitlines() if line.startswith("| `")]
    return {name for cell in cells for name in re.findall(r"`(\w+)`", cell)}


@pytest.mark.parametrize("workload", WORKLOADS)
def test_flags_and_defaults_of_each_workload_are_as_the_page_says(workload: str) -> None:
    for parameter in fields(WORKLOADS[workload]):
        flag = f"--{parameter.name.removesuffix('_s').replace('_', '-')}"
        assert f"`{flag}` {parameter.default:g}" in row(workload)


def test_the_page_explains_every_finding_and_no_other() -> None:
    sources = [Path(str(module.__file__)).read_text() for module in (comparison, measuring, run_findings)]
    kinds = {kind for source in sources for kind in re.findall(r'Finding\(\s*"(\w+)"', source)}
    assert names_in("What makes a result void") == kinds
    assert len(kinds) > 15


@pytest.mark.parametrize("grade", run_findings.Grade)
def test_grades_of_the_page_are_those_of_the_findings(grade: run_findings.Grade) -> None:
    assert f"| {grade.value} |" in TEXT


def test_the_page_explains_every_name_of_the_document() -> None:
    found = compare([run_of([0.1, 0.2], cached=[0, 64])])
    written = document(found, found.runs[0].workload, about())
    assert names_in("The JSON document") == written.keys() - {"schema"}
    for name in (*written["workload"], *written["how"]):
        assert f"`{name}`" in TEXT or name in ("off", "cold"), name
    for name in written["runs"][0]:
        assert f"`{name}`" in row("runs"), name


def test_the_page_explains_every_row_of_the_table() -> None:
    explained = " ".join(TEXT.replace("*", "").split())
    assert [name for name, *_ in ROWS if name.split(",")[0] not in explained] == []


def test_help_shows_workloads_examples_and_exit_codes(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["bench", "--help"])
    assert ended.value.code == 0
    shown = capsys.readouterr().out
    for word in (
        *WORKLOADS,
        "examples:",
        "exit codes:",
        "--compare",
        "--also-vllm",
        "prefix (256)",
        "documents (2048)",
    ):
        assert word in shown, word


def test_the_guide_s_test_is_on_the_page_with_its_parameters() -> None:
    (line,) = (line for line in TEXT.splitlines() if line.startswith("kveik bench prefix --url http://127.0.0.1:1025"))
    words = line.split()
    given = dict(itertools.pairwise(words))
    # From the guide: --prefix-repetition-prefix-len 8192 and so on.
    assert (given["--prefix-tokens"], given["--suffix-tokens"], given["--answer-tokens"]) == ("8192", "1024", "256")
    assert (given["--requests"], given["--prefixes"], given["--seed"]) == ("10", "5", "1000")
    assert (given["--concurrency"], given["--rate"]) == ("4", "1")

"""Headline, table, sentence, document and plot of a benchmark."""

import datetime
import io
import json
from typing import Any

from rich.console import Console

from kveik.bench.bench_report import About, conclusion, document, headline, table
from kveik.bench.comparison import Comparison, compare
from kveik.bench.engine_counters import Counted
from kveik.bench.machine import Machine
from kveik.bench.side_run import Sharing
from kveik.bench.vllm_serve import VllmFigures
from tests.bench_runs import run_of

HITS = [0, 64, 64, 64]
VLLM = VllmFigures(4, 0, 0.111, 0.2, 0.3, 0.012, 3.0, 12.0, 500.0)


def about(**changed: Any) -> About:
    values: dict[str, Any] = {
        "date": datetime.datetime(2026, 1, 2, 3, 4, 5, tzinfo=datetime.UTC),
        "machine": Machine("Example CPU", 2, 24.0, "Linux x86_64", 0.1),
        "addresses": {"on": "http://a", "off": "http://a"},
        "models": {"on": "small", "off": "small"},
        "versions": {"on": "0.32.0", "off": "0.32.0"},
        "off_how": "the same service, each request with a cache salt of its own",
        "cold_how": "each run has a cache salt of its own",
        "rounds": 3,
        "places": 4,
        "per_s": 0.0,
        "seed": 1,
        "simulated": False,
    }
    return About(**{**values, **changed})


def example(rounds: int = 3, cached: list[int] = HITS) -> Comparison:
    runs = []
    for number in range(1, rounds + 1):
        runs.append(run_of([0.2, 0.1, 0.1, 0.1], number=number, cached=cached))
        runs.append(run_of([0.2] * 4, side="off", number=number, sharing=Sharing.NONE))
    return compare(runs)


def shown(found: Comparison, **given: Any) -> str:
    out = io.StringIO()
    Console(file=out, width=160).print(table(found, found.runs[0].workload, **given))
    return out.getvalue()


def test_the_sentence_tells_the_gain_how_sure_it_is_and_what_was_used() -> None:
    assert conclusion(example()) == (
        "With the cache the median time to the first token was 0.100 s instead of 0.200 s, 2.00 times as fast "
        "(3 rounds, 95 %: 2.00 to 2.00); 576 (38%) of 1536 prompt tokens came from a cache."
    )


def test_one_round_is_not_passed_off_as_sure() -> None:
    assert "one round, so nobody knows how sure that is" in conclusion(example(rounds=1))


def test_one_side_alone_tells_its_time_and_nothing_answered_tells_so() -> None:
    alone = conclusion(compare([run_of([0.2, 0.1, 0.1, 0.1], cached=HITS)]))
    assert alone.startswith("The first token came after 0.100 s (median of 4 requests)")
    failed = compare([run_of([0.1], changed=[{"failure": "gone"}])])
    assert conclusion(failed) == "No request was answered."


def test_the_first_line_says_what_the_figures_are_worth() -> None:
    assert headline(example(), about()) == "cold at its start, measured"
    assert "SIMULATED engines, nothing was computed by a model" in headline(example(), about(simulated=True))
    assert headline(example(cached=[112] * 4), about()).startswith("WARM (measured): on, round 1: ")
    broken = compare([run_of([0.1, 0.1], changed=[{"failure": "gone"}, {}])])
    assert headline(broken, about()).startswith("VOID (measured): on, round 1: 1 of 2 requests failed")


def test_the_table_has_a_column_a_side_gains_and_intervals() -> None:
    text = shown(example())
    assert "TTFT, median" in text
    assert "0.100 s (0.100 to 0.100)" in text or "0.100 s (0.100 to 0.200)" in text
    assert "2.00 x (2.00 to 2.00)" in text
    assert "960 / 576 / 0" in text
    assert "TTFT of prompts with something to reuse" in text


def test_vllm_s_own_figures_stand_beside_those_that_mean_the_same() -> None:
    text = shown(example(), vllm=VLLM)
    (line,) = (line for line in text.splitlines() if "TTFT from sending" in line)
    assert "0.111 s" in line
    (line,) = (line for line in text.splitlines() if "TTFT, median" in line)
    assert "0.111 s" not in line


def test_cached_tokens_that_nobody_tells_are_not_called_none() -> None:
    run = run_of([0.1] * 4, cached=[-1] * 4, counted=run_of([0.1]).counted.__class__())
    assert "not known" in shown(compare([run]))


def test_the_document_says_all_and_keeps_each_request() -> None:
    found = example()
    read = json.loads(json.dumps(document(found, found.runs[0].workload, about(), VLLM)))
    assert (read["schema"], read["verdict"], read["simulated"]) == (1, "measured", False)
    assert read["machine"]["processor"] == "Example CPU"
    assert read["how"]["off"].startswith("the same service")
    assert read["how"]["concurrency"] == 4
    assert read["workload"]["requests"] == 4
    assert [side["side"] for side in read["sides"]] == ["on", "off"]
    assert read["sides"][0]["ttft_s"]["value"] == 0.1
    assert read["sides"][0]["ttft_p99_s"]["high"] is None
    assert read["gains"]["ttft"]["value"] == 2.0
    assert read["vllm_bench_serve"]["ttft_s"] == 0.111
    assert len(read["runs"]) == 6
    first = read["runs"][0]["requests"][1]
    assert (first["ttft_s"], first["cached_tokens"], first["reusable_tokens"]) == (0.1, 64, 64)
    assert {finding["kind"] for finding in read["findings"]} == {"few"}


def cells(found: Comparison, name: str) -> list[str]:
    """The row of the table that begins with a name, cell by cell."""
    (line,) = (line for line in shown(found).splitlines() if line.strip().startswith(name))
    return [cell for cell in line.strip().removeprefix(name).split("  ") if cell.strip()]


def test_a_bound_that_too_few_requests_give_is_a_question_mark() -> None:
    eight = compare([run_of([0.1 * n for n in range(1, 9)], cached=[0] + [64] * 7)])
    (cell,) = cells(eight, "TTFT, p99")
    assert cell.strip() == "0.793 s (0.700 to ?)"
    (cell,) = cells(compare([run_of([0.1, 0.2], cached=[0, 64])]), "TTFT, median")
    assert cell.strip() == "0.150 s"


def test_what_was_computed_again_is_a_row_of_its_own() -> None:
    partly = compare([run_of([0.1] * 4, cached=[0, 64, 0, 32])])
    assert [cell.strip() for cell in cells(partly, "could come from an empty one")] == ["192"]
    assert [cell.strip() for cell in cells(partly, "computed again all the same")] == ["96"]


def test_rows_without_any_figure_are_left_out() -> None:
    off_alone = compare([run_of([0.2] * 4, side="off", sharing=Sharing.NONE, counted=Counted())])
    text = shown(off_alone)
    assert "something to reuse" not in text
    assert "local / external" not in text
    assert "nothing to reuse" in text


def test_rates_are_means_over_rounds() -> None:
    found = compare([run_of([0.1] * 4, number=1, cached=HITS), run_of([1.1] * 4, number=2, cached=HITS)])
    # Four requests in 3.13 and in 4.13 seconds.
    (cell,) = cells(found, "requests/s")
    assert cell.strip().startswith("1.123 (")


def test_a_document_of_failed_requests_says_why_and_has_no_times_for_them() -> None:
    found = compare([run_of([0.1, 0.1], changed=[{"failure": "HTTP 500", "first_s": -1.0}, {}])])
    written = document(found, found.runs[0].workload, about())
    failed, answered = written["runs"][0]["requests"]
    assert (failed["failure"], failed["ttft_s"]) == ("HTTP 500", None)
    assert (answered["failure"], answered["ttft_s"]) == ("", 0.1)
    assert written["vllm_bench_serve"] is None
    assert written["gains"] == {}


def test_a_document_of_nothing_answered_can_be_written() -> None:
    found = compare([run_of([0.1], changed=[{"failure": "gone", "first_s": -1.0}])])
    written = json.loads(json.dumps(document(found, found.runs[0].workload, about())))
    assert written["verdict"] == "void"
    assert written["sides"] == []

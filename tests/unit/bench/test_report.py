"""Table, document, sentence and plot of the demonstration."""

import datetime
import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from kveik.bench.clients import Asked, Tally
from kveik.bench.demo import Demonstrated
from kveik.bench.machine import Machine, processor_name, this_machine
from kveik.bench.report import conclusion, document, survived, table
from kveik.bench.service import Outage
from kveik.bench.workload import Measurement, Route, Row, rows
from kveik.engine.client import Completion

MACHINE = Machine("Example CPU", 2, 24.0, "Linux x86_64", 0.1)
OUTAGE = Outage("engine-1", 31.2, Tally((Asked(0.0, 1.0), Asked(0.0, 2.5))))
DATE = datetime.datetime(2026, 1, 2, 3, 4, 5, tzinfo=datetime.UTC)


def example(*, wrong: bool = False) -> list[Row]:
    def answer(token: int) -> Completion:
        return Completion((token,), "", (-0.5,), ({token: -0.5},), 0.1, 0.2, 10, 0, "length")

    ttfts_s = {Route.COLD: 20.0, Route.LOCAL: 0.2, Route.OTHER: 0.25, Route.RESTART: 0.3}
    return rows(
        [
            Measurement(tokens, route, [seconds * tokens / 7000], [answer(2 if wrong and route.shared else 1)], tokens)
            for tokens in (512, 7000)
            for route, seconds in ttfts_s.items()
        ]
    )


def test_the_last_line_tells_the_longest_prompt_in_plain_words() -> None:
    assert conclusion(example()) == (
        "A prompt of 7000 tokens had its first token after 20.0 s when it was computed, and after 0.25 s on another "
        "engine that never saw it, 80 times faster; after kill -9 and restart it took 0.30 s, and every answer had "
        "the same tokens as the cold one."
    )


def test_a_difference_is_not_hidden_behind_speed() -> None:
    assert "SOME ANSWERS DIFFER" in conclusion(example(wrong=True))
    out = io.StringIO()
    Console(file=out, width=140).print(table(example(wrong=True)))
    assert "NO" in out.getvalue()


def test_what_clients_saw_of_the_killed_engine_is_told_with_its_figures() -> None:
    assert survived(OUTAGE) == (
        "engine-1 was killed with -9 under load and got requests again after 31 s; all 2 requests of the clients were "
        "answered, the slowest in 2.5 s."
    )


def test_a_stream_that_the_killed_engine_had_begun_is_told_but_no_fault() -> None:
    outage = Outage("engine-1", 31.2, Tally((Asked(0.0, 1.0), Asked(0.0, 2.0, failure="the engine failed", cut=True))))
    assert outage.fine
    assert "of 2 requests of the clients 1 ended with an error, since the engine had begun" in survived(outage)


def test_more_streams_cut_off_than_there_are_clients_are_a_fault() -> None:
    outage = Outage("engine-1", 31.2, Tally((Asked(0.0, 2.0, failure="the engine failed", cut=True),) * 5))
    assert not outage.fine
    assert "BUT of 5 requests 0 FAILED, 5 streams were cut off" in survived(outage)


@pytest.mark.parametrize("asked", [Asked(0.0, 1.0, failure="cut off"), Asked(0.0, 1.0, wrong="cut off")])
def test_a_request_that_was_lost_or_answered_wrongly_is_not_hidden(asked: Asked) -> None:
    assert "BUT of 1 requests" in (told := survived(Outage("engine-1", 31.2, Tally((asked,)))))
    assert told.endswith("cut off")


def test_the_table_has_one_row_a_length() -> None:
    out = io.StringIO()
    Console(file=out, width=140).print(table(example()))
    assert "20.000 s" in out.getvalue()
    assert "80.0 x faster" in out.getvalue()


def test_the_document_names_machine_and_date_and_keeps_single_runs() -> None:
    found = json.loads(json.dumps(document(Demonstrated(example(), OUTAGE), MACHINE, "small", DATE)))
    assert found["date"] == "2026-01-02T03:04:05+00:00"
    assert found["machine"]["processor"] == "Example CPU"
    longest = found["rows"][-1]
    assert longest["equal"] is True
    assert longest["routes"]["other"] == {
        "ttft_s": 0.25,
        "runs_s": [0.25],
        "hit_tokens": 7000,
        "same_tokens": True,
        "logprob_distance": 0.0,
    }


def test_the_plot_is_a_png(tmp_path: Path) -> None:
    plot = pytest.importorskip("kveik.bench.plot", exc_type=ImportError)
    file = tmp_path / "ttft.png"
    plot.draw(example(), file, MACHINE, "small", DATE)
    assert file.read_bytes().startswith(b"\x89PNG")


def test_this_machine_says_what_it_is() -> None:
    machine = this_machine()
    assert machine.cores >= 1
    assert machine.memory_gib > 0
    assert machine.processor


def test_without_cpuinfo_the_platform_names_the_processor(tmp_path: Path) -> None:
    assert processor_name(tmp_path / "none")
    (tmp_path / "cpuinfo").write_text("processor\t: 0\nmodel name\t: Example CPU\n")
    assert processor_name(tmp_path / "cpuinfo") == "Example CPU"

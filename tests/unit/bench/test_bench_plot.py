"""The plot: what is in it, of every kind of result."""

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("matplotlib")

from matplotlib.figure import Figure

from kveik.bench.bench_plot import draw
from kveik.bench.comparison import Comparison, compare
from kveik.bench.engine_counters import Counted
from kveik.bench.side_run import Sharing
from tests.bench_runs import run_of
from tests.unit.bench.test_bench_report import about

HITS = [0, 64, 64, 64]


@pytest.fixture
def drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Draw a result; the figure, which was written as PNG."""
    figures: list[Figure] = []
    save = Figure.savefig

    def savefig(figure: Figure, file: Path) -> None:
        figures.append(figure)
        save(figure, file)

    monkeypatch.setattr(Figure, "savefig", savefig)

    def draw_it(found: Comparison, **changed: Any) -> Figure:
        file = tmp_path / "plot.png"
        draw(found, found.runs[0].workload, about(**changed), file)
        assert file.read_bytes().startswith(b"\x89PNG")
        return figures[-1]

    return draw_it


def both() -> Comparison:
    return compare(
        [
            run
            for number in (1, 2)
            for run in (
                run_of([0.2, 0.1, 0.1, 0.1], number=number, cached=HITS),
                run_of([0.2] * 4, side="off", number=number, sharing=Sharing.NONE),
            )
        ]
    )


def texts(figure: Figure) -> str:
    found = [figure.get_suptitle(), figure.get_supxlabel(), *(text.get_text() for text in figure.texts)]
    for axes in figure.axes:
        found.append(axes.get_xlabel())
        if (legend := axes.get_legend()) is not None:
            found += [text.get_text() for text in legend.get_texts()]
    return "\n".join(found)


def test_it_says_what_was_measured_where_and_how(drawn: Any) -> None:
    said = texts(drawn(both()))
    assert "prefix: 4 requests a round, 3 rounds, small (measured)" in said
    assert "measured 2026-01-02 on Example CPU" in said
    assert "off: the same service, each request with a cache salt of its own" in said
    assert "times as fast" in said
    assert "on: with the cache" in said
    assert "VOID" not in said


def test_every_round_is_shown_thin_and_all_together_thick(drawn: Any) -> None:
    lines = drawn(both()).axes[0].get_lines()
    assert sorted(line.get_linewidth() for line in lines) == [0.8, 0.8, 0.8, 0.8, 2.0, 2.0]


def test_the_bars_are_the_tokens_by_source(drawn: Any) -> None:
    bars = [bar.get_width() for bar in drawn(both()).axes[2].patches]
    assert bars == [640, 384, 0, 1024, 0, 0]


def test_where_only_answers_tell_the_bar_has_what_is_cached(drawn: Any) -> None:
    found = compare([run_of([0.1] * 4, cached=HITS, counted=Counted())])
    assert [bar.get_width() for bar in drawn(found).axes[2].patches] == [320, 192, 0]


def test_simulated_results_say_so(drawn: Any) -> None:
    said = texts(drawn(both(), simulated=True))
    assert "(SIMULATED engines)" in said
    assert "SIMULATED engines 2026-01-02" in said


@pytest.mark.parametrize(
    ("found", "stamp"),
    [
        (compare([run_of([0.1] * 4, cached=[112] * 4)]), "WARM"),
        (compare([run_of([0.1] * 2, changed=[{"token_ids": ()}, {}])]), "VOID"),
        (compare([run_of([0.1], changed=[{"failure": "gone"}])]), "VOID"),
    ],
    ids=["warm", "void", "nothing answered"],
)
def test_figures_that_count_for_nothing_are_stamped(drawn: Any, found: Comparison, stamp: str) -> None:
    assert stamp in texts(drawn(found))


def test_long_sentences_are_broken_into_lines(drawn: Any) -> None:
    caption = drawn(both(), off_how="a very long way of saying it " * 20).get_supxlabel()
    assert max(map(len, caption.splitlines())) <= 150

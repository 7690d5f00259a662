"""What a piece of text looks like."""

import pytest

from kveik.router.text_shapes import shape_of


def shape(text: str) -> str:
    """The shape of what stands between two bars."""
    before, inside, after = text.split("|")
    return shape_of(before + inside + after, len(before), len(before) + len(inside))


@pytest.mark.parametrize(
    "text",
    [
        "Current time: 2026-11-30T06:|25:14|Z. You are",
        "Current time: |2026-11-30 06:25|",
        "Today is |Monday, November 30|, 2026.",
        "Today is Mon|day|, be kind",
        "on 3|0 Nov| 2026 at noon",
        "date: 30|/11/2026|",
        "当前时间：2026年11月3|0|日 星期一",
        "现在是|上午 6:25|。",
        "at |1764483914| sharp",
        "at 17644839|14.123|",
        "it is |6:25 pm| now",
        "updated Nov |30|",
    ],
)
def test_dates_and_times(text: str) -> None:
    assert shape(text) == "date"


@pytest.mark.parametrize(
    "text",
    [
        "request 123e4567-e89b-12d3-a456-4266|14174000| says",
        "id |4f2a9c1| end",
        "x-anthropic-billing-header: cc_version=2.1; cch=|a1b2c|;",
        "session: |sess_8Fh2Kd93LmQ0|",
        'user "request_id": "|abcXYZ|"',
        "key |aB3dE5gH7jK9|.",
        "trace-|9912ab|",
    ],
)
def test_ids(text: str) -> None:
    assert shape(text) == "id"


@pytest.mark.parametrize("text", ["turn |12| of the talk", "you have 1,0|24| tokens left", "price |3.50| euros"])
def test_numbers(text: str) -> None:
    assert shape(text) == "number"


def test_white_space() -> None:
    assert shape("a|  |b") == "whitespace"
    assert shape("a|\n\t|b") == "whitespace"


@pytest.mark.parametrize(
    "text",
    [
        "You are a |kind| assistant",
        "Question: |what is a cache in 2026 and why|? Rules:",
        "version |is| 10.2.30",
        "the monday|ish| mood",
        "|你好|世界",
        "",
    ],
)
def test_other_text_has_no_shape(text: str) -> None:
    assert (shape(text) if text else shape_of("", 0, 0)) == ""


def test_text_around_counts_only_if_it_belongs_to_the_same_thing() -> None:
    assert shape("on 2026-11-30 the |engine| ran") == ""

"""Sketches of texts: units, runs and marks."""

import numpy as np
import pytest

from kveik.router.prompt_sketch import (
    DIGITS,
    MARKS_MAX,
    MIXED,
    PIECE_BYTES,
    RUN_UNITS,
    SIGN,
    SPACE,
    TEXT_BYTES_MAX,
    WIDE,
    WORD,
    Sketcher,
    classes_of,
)  # fmt: skip
from tests.prompts import words

SKETCHER = Sketcher(7)


def pieces(text: str) -> list[str]:
    raw = text.encode()
    begins = SKETCHER.units(raw)[1].tolist()
    return [raw[a:b].decode() for a, b in zip(begins, [*begins[1:], len(raw)], strict=True)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("at 06:25,  now", ["at", " ", "06", ":", "25", ",", "  ", "now"]),
        ("你好 world", ["你", "好", " ", "world"]),
        ("naïve", ["na", "ï", "ve"]),
        ("a\n\tb", ["a", "\n\t", "b"]),
        ("👩‍💻!", ["👩", "‍", "💻", "!"]),
    ],
)
def test_texts_are_cut_into_words_signs_white_space_and_wide_letters(text: str, expected: list[str]) -> None:
    assert pieces(text) == expected


def test_an_empty_text_has_no_units() -> None:
    assert len(SKETCHER.units(b"")[0]) == 0
    assert SKETCHER.marks(SKETCHER.units(b"")[0]) == ()


@pytest.mark.parametrize(
    ("text", "kind"), [("word", WORD), ("2026", DIGITS), ("4f2a", MIXED), ("  ", SPACE), (",", SIGN), ("你", WIDE)]
)
def test_units_have_a_class(text: str, kind: int) -> None:
    assert classes_of(SKETCHER.units(text.encode())[0]) == {kind}


def test_equal_words_have_equal_units_wherever_they_stand() -> None:
    units = SKETCHER.units(b"engine, engine and engines")[0]
    assert units[0] == units[3]
    assert units[0] != units[-1]


def test_a_long_text_is_cut_like_a_short_one_across_its_pieces() -> None:
    text = words(3 * PIECE_BYTES // 6, 1).encode()
    begins = SKETCHER.units(text)[1]
    assert len(text) > 2 * PIECE_BYTES
    assert begins.tolist() == [0, *(n + 1 for n in range(len(text) - 1) if (text[n] == 32) != (text[n + 1] == 32))]


def test_a_word_longer_than_a_piece_ends() -> None:
    assert len(SKETCHER.units(b"x" * (PIECE_BYTES + 10))[0]) == 2


def test_text_beyond_the_limit_is_left_out() -> None:
    assert SKETCHER.units(b"word " * (TEXT_BYTES_MAX // 4))[1][-1] < TEXT_BYTES_MAX


def test_bytes_that_are_no_utf_8_are_cut_somehow() -> None:
    assert len(SKETCHER.units(b"\x80\x80a\xff\xfe")[0]) >= 3


def test_runs_are_equal_where_twelve_units_are_equal() -> None:
    one = SKETCHER.units(words(30, 1).encode())[0]
    shifted = np.concatenate((SKETCHER.units(b"something else ")[0], one))
    runs, others = SKETCHER.runs(one), SKETCHER.runs(shifted)
    assert len(runs) == len(one) - RUN_UNITS + 1
    assert np.isin(runs, others).all()
    assert not np.isin(SKETCHER.runs(SKETCHER.units(words(30, 2).encode())[0]), others).any()
    assert len(SKETCHER.runs(one[: RUN_UNITS - 1])) == 0


def test_texts_that_are_alike_share_marks_and_others_do_not() -> None:
    text = words(400, 1)
    marks = set(SKETCHER.marks(SKETCHER.units(text.encode())[0]))
    changed = set(SKETCHER.marks(SKETCHER.units(f"at 06:25 {text} end".encode())[0]))
    other = set(SKETCHER.marks(SKETCHER.units(words(400, 2).encode())[0]))
    assert len(marks) == MARKS_MAX
    assert len(marks & changed) >= MARKS_MAX - 2
    assert not marks & other


def test_another_secret_gives_other_units() -> None:
    text = words(50).encode()
    assert (Sketcher(8).units(text)[0] != SKETCHER.units(text)[0]).any()


def test_units_have_no_room_for_words() -> None:
    assert SKETCHER.units(b"word")[0].dtype == np.uint16

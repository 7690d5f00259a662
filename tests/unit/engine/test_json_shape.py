import pytest

from kveik.engine import json_shape
from kveik.errors import EngineError


@pytest.mark.parametrize("value", [None, True, "5", -1, 1.0, [], {}])
def test_only_whole_numbers_that_are_not_negative_are_counts(value: object) -> None:
    with pytest.raises(EngineError, match=r"cached_tokens is .*, expected a whole number, 0 or more"):
        json_shape.whole(value, "cached_tokens")


def test_counts_may_be_of_any_size() -> None:
    assert json_shape.whole(0, "") == 0
    assert json_shape.whole(10**400, "") == 10**400


@pytest.mark.parametrize(
    "value",
    [None, False, "0.5", float("nan"), float("inf"), -float("inf"), 10**400, pytest.param(10**5000, id="unprintable")],
)
def test_only_finite_numbers_are_numbers(value: object) -> None:
    with pytest.raises(EngineError, match=r"a log probability is .*, expected a finite number"):
        json_shape.number(value, "a log probability")


def test_a_whole_number_is_a_number_too() -> None:
    assert json_shape.number(-3, "") == -3.0


def test_a_wrong_value_is_shown_shortened() -> None:
    with pytest.raises(EngineError) as caught:
        json_shape.text(list(range(10_000)), "the id")
    assert str(caught.value).startswith("the id is [0, 1, 2, ")
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize("raw", [b"", b"{", b"\xff", b"[" * 100_000, b"1" * 5000])
def test_bytes_that_are_no_json_are_told_with_their_beginning(raw: bytes) -> None:
    with pytest.raises(EngineError, match="the answer is no JSON: b'") as caught:
        json_shape.parsed(raw, "the answer")
    assert len(str(caught.value)) < 300

"""Which values are taken."""

from typing import Any

import pytest

from kveik.doctor.environment_table import Variable
from kveik.doctor.environment_values import expected, is_allowed, number


def variable(kind: str, **more: Any) -> Variable:
    return Variable(name="X", owner="vllm", meaning="", source="", kind=kind, **more)


CASES = [
    (variable("whole", minimum=1, maximum=16), ["1", "16", " 4 "], ["0", "17", "4.0", "many", "", "1e1"]),
    (variable("whole", minimum=0), ["0", "99999999999"], ["-1", "1_000"]),
    (variable("whole"), ["-5"], ["x"]),
    (variable("number", minimum=0.001), ["0.5", "10"], ["0", "-1", "fast"]),
    (variable("choice", choices=("direct", "ffts")), ["direct"], ["Direct", "", "huge"]),
    (variable("pattern", choices=(r"\d+(,\d+)*",)), ["0", "0,1,2"], ["0-3", ""]),
    (variable("path"), ["/a/b", "relative"], ["", " "]),
    (
        variable("hostport"),
        ["192.0.2.7:18481", "node-1:80", "[2001:db8::1]:80", "tcp://node:5000"],
        ["node", "node:", "node:0", "node:70000"],
    ),
    (variable("address"), ["192.0.2.7", "2001:db8::1"], ["node-1", "192.0.2"]),
    (variable("size"), ["4GB", "4 GiB", "1073741824", "1.5g"], ["much", "4 apples", ""]),
    (variable("json"), ['{"a": 1}', "[]"], ["{a: 1}", ""]),
    (variable("text"), ["", "anything"], []),
]


@pytest.mark.parametrize(("of", "good", "bad"), CASES, ids=lambda case: getattr(case, "kind", None))
def test_values_are_told_apart(of: Variable, good: list[str], bad: list[str]) -> None:
    assert [value for value in good if not is_allowed(of, value)] == []
    assert [value for value in bad if is_allowed(of, value)] == []


def test_what_is_expected_is_told_in_words() -> None:
    told = {
        expected(variable("whole", minimum=1, maximum=16)): "a whole number from 1 to 16",
        expected(variable("whole", minimum=1, unit="s")): "a whole number of at least 1 s",
        expected(variable("number", unit="GiB")): "a number GiB",
        expected(variable("choice", choices=("a", "b"))): "one of a, b",
        expected(variable("hostport")): "HOST:PORT",
        expected(variable("json")): "JSON",
        expected(variable("text")): "any text",
    }
    assert list(told) == list(told.values())


def test_a_number_of_many_digits_is_told_in_full() -> None:
    assert "134217728" in expected(variable("whole", minimum=134217728))


def test_what_is_no_number_is_none() -> None:
    assert number("1.5") == 1.5
    assert number("twice the workers") is None

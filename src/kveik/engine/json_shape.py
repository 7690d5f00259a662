"""What an engine's JSON must look like: each function takes a value as it is, or says what was expected.

All raise :class:`~kveik.errors.EngineError`. Nothing is converted: a number written as text, or a
truth value where a number belongs, is a wrong answer and no number.
"""

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from kveik.errors import EngineError

_SHOWN = 200


def parsed(raw: bytes, what: str) -> Any:
    """The value that a JSON text stands for."""
    try:
        return json.loads(raw)
    except (ValueError, RecursionError) as error:  # RecursionError: nested thousands deep
        raise EngineError(f"{what} is no JSON: {raw[:_SHOWN]!r}") from error


def mapping(value: Any, what: str) -> Mapping[str, Any]:
    """A JSON object."""
    if not isinstance(value, dict):
        raise _wrong(value, what, "an object")
    return value


def sequence(value: Any, what: str) -> Sequence[Any]:
    """A JSON array."""
    if not isinstance(value, list):
        raise _wrong(value, what, "an array")
    return value


def text(value: Any, what: str) -> str:
    """A JSON string."""
    if not isinstance(value, str):
        raise _wrong(value, what, "text")
    return value


def whole(value: Any, what: str) -> int:
    """A count or an id: a whole number that is not negative."""
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise _wrong(value, what, "a whole number, 0 or more")
    return value


def number(value: Any, what: str) -> float:
    """A finite number."""
    expected = "a finite number"
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise _wrong(value, what, expected)
    try:
        converted = float(value)
    except OverflowError:  # JSON has whole numbers of any size
        raise _wrong(value, what, expected) from None
    if not math.isfinite(converted):
        raise _wrong(value, what, expected)
    return converted


def _wrong(value: Any, what: str, expected: str) -> EngineError:
    try:
        shown = repr(value)
    except (ValueError, RecursionError):  # too many digits, or nested too deep to be written
        shown = f"a {type(value).__name__}"
    return EngineError(f"{what} is {shown[:_SHOWN]}, expected {expected}")

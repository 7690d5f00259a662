"""Whether the value of a variable is one that its reader takes. Pure."""

import json
import re
from collections.abc import Callable, Mapping

from kveik.doctor.environment_table import Variable

_SIZE = re.compile(r"\d+(?:\.\d+)?\s*(?:[KMGT]i?B?|B)?", re.IGNORECASE)
_HOST_PORT = re.compile(r"(?:[\w+]+://)?(?:\[[0-9a-fA-F:.%]+\]|[\w.-]+):(\d{1,5})(?:/\S*)?")
_ADDRESS = re.compile(r"\d{1,3}(?:\.\d{1,3}){3}|[0-9a-fA-F:]+:[0-9a-fA-F:]*")
_PORT_MAX = 65535


def expected(variable: Variable) -> str:
    """In words, what values are taken."""
    if variable.kind in {"whole", "number"}:
        return _range(variable, "a whole number" if variable.kind == "whole" else "a number")
    if variable.kind == "choice":
        return f"one of {', '.join(variable.choices)}"
    return _WORDS.get(variable.kind, "any text")


def is_allowed(variable: Variable, value: str) -> bool:
    """Whether the value is taken as it stands."""
    test = _TESTS.get(variable.kind)
    return test is None or test(variable, value)


def number(value: str) -> float | None:
    """A value as a number, or None."""
    try:
        return float(value)
    except ValueError:
        return None


def _range(variable: Variable, what: str) -> str:
    unit = f" {variable.unit}" if variable.unit else ""
    lowest, highest = variable.minimum, variable.maximum
    if lowest is not None and highest is not None:
        return f"{what} from {lowest:.15g} to {highest:.15g}{unit}"
    return f"{what}{unit}" if lowest is None else f"{what} of at least {lowest:.15g}{unit}"


def _is_number(variable: Variable, value: str) -> bool:
    if variable.kind == "whole" and re.fullmatch(r"\s*[+-]?\d+\s*", value) is None:
        return False
    found = number(value)
    if found is None:
        return False
    too_small = variable.minimum is not None and found < variable.minimum
    return not too_small and (variable.maximum is None or found <= variable.maximum)


def _is_host_port(_: Variable, value: str) -> bool:
    found = _HOST_PORT.fullmatch(value)
    return found is not None and 0 < int(found[1]) <= _PORT_MAX


def _is_json(_: Variable, value: str) -> bool:
    try:
        json.loads(value)
    except ValueError:
        return False
    return True


_TESTS: Mapping[str, Callable[[Variable, str], bool]] = {
    "whole": _is_number,
    "number": _is_number,
    "choice": lambda variable, value: value in variable.choices,
    "pattern": lambda variable, value: any(re.fullmatch(choice, value) for choice in variable.choices),
    "path": lambda _, value: value.strip() != "",
    "hostport": _is_host_port,
    "address": lambda _, value: _ADDRESS.fullmatch(value) is not None,
    "size": lambda _, value: _SIZE.fullmatch(value.strip()) is not None,
    "json": _is_json,
}
_WORDS = {
    "pattern": "another form",
    "path": "a path",
    "hostport": "HOST:PORT",
    "address": "an IP address",
    "size": "a size such as 4GB or a number of bytes",
    "json": "JSON",
}
KINDS = frozenset({"text", *_TESTS})

"""One row of the settings table: how it is declared, and how a value from a file, a variable or a flag becomes its.

The tables are in :mod:`kveik.config`, :mod:`kveik.config_fleet` and :mod:`kveik.config_stores`.
"""

import dataclasses
import math
import os
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from kveik.byte_size import read_size
from kveik.errors import ConfigError

_Default = TypeVar("_Default", bool, int, float, str)

#: No wait is longer: the agent refuses longer deadlines, and no lock can wait for ever longer.
WAIT_MAX_S = 3600.0


@dataclass(frozen=True, slots=True)
class SettingInfo:
    """One row of the table, as documentation and flags see it."""

    section: str
    name: str
    kind: type
    unit: str
    default: bool | int | float | str
    help: str
    minimum: float | None
    maximum: float | None
    choices: tuple[str, ...]

    @property
    def env(self) -> str:
        """The environment variable that sets it."""
        return f"KVEIK_{self.section}_{self.name}".upper()


def setting(
    default: _Default,
    help: str,
    *,
    unit: str = "",
    minimum: float | None = None,
    maximum: float | None = None,
    choices: tuple[str, ...] = (),
) -> _Default:
    """A dataclass field that is one row of the settings table."""
    row = {"help": help, "unit": unit, "minimum": minimum, "maximum": maximum, "choices": choices}
    field: Any = dataclasses.field(default=default, metadata=row)
    return typing.cast(_Default, field)


def default_runtime_dir() -> str:
    """Where socket and state of this user's agent live: ``$XDG_RUNTIME_DIR/kveik`` or ``/tmp/kveik-UID``."""
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    return f"{runtime}/kveik" if runtime else f"/tmp/kveik-{os.getuid()}"  # noqa: S108 (the agent makes it 0700)


def checked(table: Mapping[str, SettingInfo], name: str, value: Any, source: str) -> Any:
    """The value of the row of that name, in its type. Raises :class:`ConfigError` naming ``source``, row and value."""
    row = table.get(name)
    if row is None:
        raise ConfigError(f"{source}: unknown setting {name!r}; known are {', '.join(table)}")
    converted = _converted(row, value, source)
    if row.choices and converted not in row.choices:
        raise ConfigError(f"{source}: {name} is {value!r}, expected one of {', '.join(map(repr, row.choices))}")
    if isinstance(converted, str):
        return converted
    if row.minimum is not None and converted < row.minimum:
        raise ConfigError(f"{source}: {name} is {value!r}, expected at least {row.minimum:g} {row.unit}".rstrip())
    if row.maximum is not None and converted > row.maximum:
        raise ConfigError(f"{source}: {name} is {value!r}, expected at most {row.maximum:g} {row.unit}".rstrip())
    return converted


_BOOLEANS = {"true": True, "1": True, "yes": True, "on": True, "false": False, "0": False, "no": False, "off": False}


def _converted(row: SettingInfo, value: Any, source: str) -> bool | int | float | str:
    """The value as the row's type. Text is converted, since environment and flags are text."""
    wrong = ConfigError(f"{source}: {row.name} is {value!r}, expected {_expected(row)}")
    if row.kind is bool:
        if isinstance(value, bool):
            return value
        if isinstance(value, str) and value.lower() in _BOOLEANS:
            return _BOOLEANS[value.lower()]
        raise wrong
    if row.kind is str:
        if not isinstance(value, str):
            raise wrong
        return value
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise wrong
    try:
        number = read_size(value) if row.unit == "bytes" and isinstance(value, str) else row.kind(value)
    except (ValueError, OverflowError):  # OverflowError: an infinite float as a whole number
        raise wrong from None
    lost_fraction = row.kind is int and isinstance(value, float) and number != value
    if lost_fraction or (isinstance(number, float) and not math.isfinite(number)):
        raise wrong
    return typing.cast("int | float", number)


def _expected(row: SettingInfo) -> str:
    if row.kind is bool:
        return "true or false"
    if row.unit == "bytes":
        return "a number of bytes, or text such as '2.5 GiB'"
    return {int: "a whole number", float: "a number", str: "text"}[row.kind] + (f" ({row.unit})" if row.unit else "")

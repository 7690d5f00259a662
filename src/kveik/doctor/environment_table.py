"""Variables of the environment that parts of a fleet read: data with sources, from ``data/environment.toml``."""

import msgspec

from kveik.doctor.check import Outcome
from kveik.doctor.data_file import read_data

_FILE = "environment.toml"


class Variable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One variable. ``owner``: whose code reads it, by the names of the table of versions.

    ``kind``: text, whole, number, choice, pattern (``choices`` are regular expressions), path, hostport, address, size
    or json. ``works_with``: versions outside of these do not read it. ``removed``: nothing reads it any more; what to
    do. ``if_bad``: what happens with a value that is not allowed. ``default``, ``unit`` and ``note`` are for people.
    """

    name: str
    owner: str
    meaning: str
    source: str
    kind: str = "text"
    default: str = ""
    minimum: float | None = None
    maximum: float | None = None
    choices: tuple[str, ...] = ()
    unit: str = ""
    works_with: dict[str, str] = {}
    removed: str = ""
    if_bad: str = ""
    note: str = ""


class Rule(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Variables that contradict each other: all conditions of ``when`` hold at once.

    A condition is ``NAME set``, ``NAME unset``, or ``NAME OPERATOR VALUE`` with ==, !=, <, > or ~ (a regular
    expression); VALUE may be the name of another variable. Unset variables have their default.
    """

    id: str
    when: tuple[str, ...]
    told: str
    fix: str
    source: str
    outcome: Outcome = Outcome.WRONG


class Family(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """All names with these prefixes that a version of a product reads."""

    prefixes: tuple[str, ...]
    owner: str
    version: str
    names: tuple[str, ...]


class EnvironmentTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The whole table."""

    variable: tuple[Variable, ...]
    rule: tuple[Rule, ...]
    family: tuple[Family, ...]


def read_environment_table() -> EnvironmentTable:
    """The table of the package."""
    return read_data(_FILE, EnvironmentTable)

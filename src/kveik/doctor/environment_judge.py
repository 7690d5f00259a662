"""What the variables of an environment do, by the table: wrong values, dead names, contradictions. Pure."""

import difflib
import re
from collections.abc import Collection, Mapping

from kveik.doctor.check import Outcome, Point
from kveik.doctor.environment_table import EnvironmentTable, Family, Rule, Variable
from kveik.doctor.environment_values import expected, is_allowed, number
from kveik.doctor.version_table import VersionTable, holds

_LIKE = 0.86


def judge_environment(
    environ: Mapping[str, str], installed: Mapping[str, str], table: EnvironmentTable, versions: VersionTable
) -> list[Point]:
    """What is to be said of each variable that the table or a family knows, and of some together; the worst first."""
    known = {variable.name: variable for variable in table.variable}
    points = []
    for name in sorted(environ):
        if name in known:
            points.append(_variable_point(known[name], environ[name], installed, versions))
        elif point := _stranger(name, table, known, versions):
            points.append(point)
    points += [
        _rule_point(rule, known) for rule in table.rule if all(_holds(part, environ, known) for part in rule.when)
    ]
    order = list(Outcome)
    return sorted(points, key=lambda point: order.index(point.outcome))


def family_of(name: str, table: EnvironmentTable) -> Family | None:
    """The family that a name belongs to by its prefix."""
    return next((family for family in table.family if name.startswith(family.prefixes)), None)


def _variable_point(variable: Variable, value: str, installed: Mapping[str, str], versions: VersionTable) -> Point:
    if variable.removed:
        told = f"set, and nothing reads it any more ({variable.meaning})"
        return Point(Outcome.WRONG, variable.name, told, variable.removed, variable.source)
    if dead := _without_effect(variable, installed, versions):
        return dead
    if not is_allowed(variable, value):
        effect = f"; {variable.if_bad}" if variable.if_bad else ""
        default = f" ({variable.default} unless set)" if variable.default else ""
        told = f"is {value!r}, expected {expected(variable)}{default}{effect}"
        return Point(Outcome.WRONG, variable.name, told, "correct the value, or take it out", variable.source)
    doubt = _undecided(variable, installed, versions)
    return doubt or Point(Outcome.WELL, variable.name, variable.meaning, source=variable.source)


def _without_effect(variable: Variable, installed: Mapping[str, str], versions: VersionTable) -> Point | None:
    for product, wanted in variable.works_with.items():
        if product in installed and holds(wanted, installed[product]) is False:
            told = f"set, and {versions.title(product)} {installed[product]} does not read it ({variable.meaning})"
            return Point(Outcome.WRONG, variable.name, told, variable.note or "take it out", variable.source)
    return None


def _undecided(variable: Variable, installed: Mapping[str, str], versions: VersionTable) -> Point | None:
    for product, wanted in variable.works_with.items():
        if product not in installed:
            told = f"read by {versions.title(product)} {wanted} only; which version reads it here is not known"
            return Point(Outcome.BEWARE, variable.name, told, variable.note, variable.source)
    return None


def _stranger(name: str, table: EnvironmentTable, known: Collection[str], versions: VersionTable) -> Point | None:
    """Of a name that the table does not have: nothing if its owner's code does, else what was meant, perhaps."""
    family = family_of(name, table)
    if family is None or name in family.names:
        return None
    owner = f"{versions.title(family.owner)} {family.version}"
    like = difflib.get_close_matches(name, {*family.names, *known}, 1, _LIKE)
    source = f"names in the code of {owner}"
    if like:
        told = f"{owner} does not know it, but {like[0]}"
        return Point(Outcome.WRONG, name, told, f"write {like[0]}, or take it out", source)
    return Point(Outcome.UNKNOWN, name, f"{owner} does not know it; a plug-in may", source=source)


def _rule_point(rule: Rule, known: Collection[str]) -> Point:
    names = dict.fromkeys(word for part in rule.when for word in part.split() if word in known)
    return Point(rule.outcome, " with ".join(names), rule.told, rule.fix, rule.source)


def _holds(condition: str, environ: Mapping[str, str], known: Mapping[str, Variable]) -> bool:
    name, operator, *rest = condition.split(None, 2)
    if operator in {"set", "unset"}:
        return (name in environ) is (operator == "set")
    wanted = _value(rest[0], environ, known) if rest[0] in known else rest[0]
    return _compare(_value(name, environ, known), operator, wanted)


def _value(name: str, environ: Mapping[str, str], known: Mapping[str, Variable]) -> str:
    return environ[name] if name in environ else known[name].default


def _compare(value: str, operator: str, wanted: str) -> bool:
    if operator == "~":
        return re.search(wanted, value) is not None
    if operator in {"==", "!="}:
        return (value == wanted) is (operator == "==")
    mine, other = number(value), number(wanted)
    if mine is None or other is None:
        return False
    return mine < other if operator == "<" else mine > other


def conditions_are_sound(rule: Rule, known: Collection[str]) -> bool:
    """Whether a rule speaks of variables that are there, in words that are understood."""
    parts = [part.split(None, 2) for part in rule.when]
    return all(
        part[0] in known and (part[1:] in (["set"], ["unset"]) or (len(part) == 3 and part[1] in _OPERATORS))
        for part in parts
    )


_OPERATORS = frozenset({"==", "!=", "<", ">", "~"})

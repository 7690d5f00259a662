"""Values as YAML blocks: enough for manifests, and nothing that a reader of YAML could take for something else. Pure.

Text is written as JSON strings, which are YAML, but for plain words: no ``no`` becomes false, nor ``1e3`` a number.
"""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

_PLAIN = re.compile(r"[A-Za-z][A-Za-z0-9]*(?:[-_./][A-Za-z0-9]+)*")
_NOT_PLAIN = frozenset(("y", "n", "yes", "no", "on", "off", "true", "false", "null", "nan", "inf"))


class Block(str):
    """Text of several lines that is written as a block, line by line."""

    __slots__ = ()


def yaml_text(value: Mapping[str, Any]) -> str:
    """A document."""
    return "\n".join(_mapping(value)) + "\n"


def _mapping(value: Mapping[str, Any]) -> list[str]:
    lines: list[str] = []
    for name, item in value.items():
        key = _scalar(name)
        if isinstance(item, Block):
            lines += [f"{key}: |", *(f"  {line}" if line else "" for line in item.rstrip("\n").split("\n"))]
        elif isinstance(item, Mapping) and item:
            lines += [f"{key}:", *(f"  {line}" for line in _mapping(item))]
        elif isinstance(item, Sequence) and not isinstance(item, str) and item:
            lines += [f"{key}:", *_sequence(item)]
        else:
            lines.append(f"{key}: {_scalar(item)}")
    return lines


def _sequence(value: Sequence[Any]) -> list[str]:
    lines: list[str] = []
    for item in value:
        if isinstance(item, Mapping) and item:
            first, *rest = _mapping(item)
            lines += [f"- {first}", *(f"  {line}" for line in rest)]
        else:
            lines.append(f"- {_scalar(item)}")
    return lines


def _scalar(value: Any) -> str:
    if isinstance(value, str) and _PLAIN.fullmatch(value) and value.lower() not in _NOT_PLAIN:
        return value
    if isinstance(value, Mapping) and not value:
        return "{}"
    return json.dumps(value, ensure_ascii=False)

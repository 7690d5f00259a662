"""Reads the doctor's data files, which are part of the package."""

import tomllib
from importlib import resources
from typing import Any, TypeVar

import msgspec

T = TypeVar("T")


def read_data(name: str, shape: type[T]) -> T:
    """The content of ``data/NAME`` as ``shape``.

    Raises :class:`msgspec.ValidationError` if the file and ``shape`` disagree, which the tests of the data find out.
    """
    text = resources.files("kveik.doctor").joinpath("data", name).read_text(encoding="utf8")
    content: dict[str, Any] = tomllib.loads(text)
    return msgspec.convert(content, shape)

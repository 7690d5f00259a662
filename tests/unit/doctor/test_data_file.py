"""Data files of the package are read into their shape, or refused."""

from typing import Any

import msgspec
import pytest

from kveik.doctor.data_file import read_data


class Wrong(msgspec.Struct, forbid_unknown_fields=True):
    """A shape that no file has."""

    nothing: int


@pytest.mark.parametrize("name", ["log_errors.toml", "versions.toml", "environment.toml"])
def test_every_file_is_readable_and_begins_with_what_it_is(name: str) -> None:
    content = read_data(name, dict[str, Any])
    assert content
    assert all(isinstance(rows, list) and rows for rows in content.values())


def test_a_file_of_another_shape_is_refused() -> None:
    with pytest.raises(msgspec.ValidationError):
        read_data("versions.toml", Wrong)


def test_a_file_that_is_not_there_is_an_error_of_ours() -> None:
    with pytest.raises(FileNotFoundError):
        read_data("weather.toml", dict[str, Any])


@pytest.mark.parametrize("name", ["log_errors.toml", "versions.toml", "environment.toml"])
def test_every_row_that_claims_something_says_where_it_is_known_from(name: str) -> None:
    content = read_data(name, dict[str, Any])
    claiming = [row for key in ("entry", "release", "fault", "variable", "rule") for row in content.get(key, [])]
    assert claiming
    assert [row for row in claiming if not row.get("source", "").strip()] == []

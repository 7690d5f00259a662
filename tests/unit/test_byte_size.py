"""Sizes are read as they are written."""

import pytest

from kveik.byte_size import read_size, size_text


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (1536 << 20, "1.5 GiB"),
        (2.5 * (1 << 40), "2.5 TiB"),
        (5000 * (1 << 40), "5000.0 TiB"),
    ],
)
def test_sizes_are_written_in_the_largest_unit_that_they_fill(size: float, text: str) -> None:
    assert size_text(size) == text


@pytest.mark.parametrize(
    ("text", "size"), [("4096", 4096), ("2.5 GiB", 5 << 29), ("64MiB", 64 << 20), (" 1 KiB", 1024), ("1TiB", 1 << 40)]
)
def test_sizes_are_read_with_and_without_a_unit(text: str, size: int) -> None:
    assert read_size(text) == size


@pytest.mark.parametrize("text", ["", "GiB", "many", "1.5", "1 GB", "nan GiB"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        read_size(text)


def test_an_endless_size_is_refused() -> None:
    with pytest.raises(OverflowError):
        read_size("inf GiB")

import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from kveik.store import shared_memory
from kveik.store.shared_memory import Mapping, available_memory_bytes, free_file_bytes

SIZE = 80 << 20


@pytest.fixture
def descriptor() -> Iterator[int]:
    fd = os.memfd_create("test")
    os.truncate(fd, SIZE)
    yield fd
    os.close(fd)


def resident_bytes(fd: int) -> int:
    return os.fstat(fd).st_blocks * 512


def test_populating_touches_every_page_and_changes_none(descriptor: int) -> None:
    mapping = Mapping(descriptor, SIZE)
    mapping.view[12345] = 77
    if not mapping.populate(threading.Event()):
        pytest.skip("this kernel is older than 5.14")
    assert resident_bytes(descriptor) == SIZE
    assert mapping.populated_bytes == SIZE
    assert mapping.view[12345] == 77
    mapping.close()


def test_populating_stops_when_told(descriptor: int) -> None:
    mapping = Mapping(descriptor, SIZE, huge_pages=True)
    stop = threading.Event()
    stop.set()
    assert not mapping.populate(stop)
    assert mapping.populated_bytes == 0
    mapping.close()


def test_two_mappings_of_one_file_are_the_same_memory(descriptor: int) -> None:
    first, second = Mapping(descriptor, SIZE), Mapping(descriptor, SIZE)
    first.view[-1] = 9
    assert second.view[-1] == 9
    first.close()
    second.close()


def test_a_slice_keeps_the_memory_mapped_after_closing(descriptor: int) -> None:
    mapping = Mapping(descriptor, SIZE)
    part = mapping.view[100:104]
    part[:] = b"kept"
    mapping.close()
    assert bytes(part) == b"kept"


def test_free_memory_and_file_space_are_positive_numbers(tmp_path: Path) -> None:
    assert 0 < available_memory_bytes() < 1 << 50
    assert free_file_bytes(str(tmp_path)) > 0


@pytest.mark.parametrize(
    ("limit", "used", "expected"),
    [(None, None, 1000), (None, 5, 1000), (5000, 100, 1000), (600, 200, 400), (600, 700, 0)],
    ids=["no group", "unlimited", "roomy", "tight", "over its limit"],
)
def test_memory_is_what_the_machine_and_the_group_both_have(
    monkeypatch: pytest.MonkeyPatch, limit: int | None, used: int | None, expected: int
) -> None:
    answers = {"memory.max": limit, "memory.current": used}
    monkeypatch.setattr(shared_memory, "_number", lambda path: answers[path.rpartition("/")[2]])
    monkeypatch.setattr(shared_memory, "_meminfo_available", lambda: 1000)
    assert available_memory_bytes() == expected


@pytest.mark.parametrize(("text", "number"), [("4096\n", 4096), ("max\n", None), ("", None)])
def test_a_limit_is_a_number_or_none(tmp_path: Path, text: str, number: int | None) -> None:
    (tmp_path / "memory.max").write_text(text)
    assert shared_memory._number(str(tmp_path / "memory.max")) == number
    assert shared_memory._number(str(tmp_path / "absent")) is None

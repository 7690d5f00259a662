"""Models are identified by the content of their weights."""

import os
from pathlib import Path

import pytest

from kveik.connector import weights
from kveik.connector.weights import weights_digest
from kveik.errors import KveikError


def make_model(folder: Path, **files: bytes) -> Path:
    folder.mkdir(parents=True)
    for name, content in files.items():
        (folder / f"{name}.safetensors").write_bytes(content)
    return folder


def test_a_renamed_folder_is_the_same_model(tmp_path: Path) -> None:
    model = make_model(tmp_path / "old", a=b"1" * 1000)
    before = weights_digest(model)
    assert weights_digest(model.rename(tmp_path / "new")) == before


def test_a_copy_is_the_same_model(tmp_path: Path) -> None:
    one = make_model(tmp_path / "one", a=b"1", b=b"2")
    assert weights_digest(one) == weights_digest(make_model(tmp_path / "two", a=b"1", b=b"2"))


@pytest.mark.parametrize("other", [{"a": b"1", "b": b"3"}, {"a": b"2", "b": b"1"}, {"a": b"1"}, {"a": b"12"}])
def test_other_weights_under_the_same_name_are_another_model(tmp_path: Path, other: dict[str, bytes]) -> None:
    one = weights_digest(make_model(tmp_path / "one" / "model", a=b"1", b=b"2"))
    assert weights_digest(make_model(tmp_path / "two" / "model", **other)) != one


def test_one_changed_byte_in_a_large_file_counts(tmp_path: Path) -> None:
    content = bytearray(40 << 20)
    one = weights_digest(make_model(tmp_path / "one", a=bytes(content)))
    content[23_456_789] = 1
    assert weights_digest(make_model(tmp_path / "two", a=bytes(content))) != one


def test_samples_are_marked_as_such_and_see_a_changed_end(tmp_path: Path) -> None:
    content = bytearray(80 << 20)
    one = weights_digest(make_model(tmp_path / "one", a=bytes(content)), sampled=True)
    content[-1] = 1
    two = weights_digest(make_model(tmp_path / "two", a=bytes(content)), sampled=True)
    assert one.startswith("sampled-")
    assert one != two


def test_a_known_file_is_not_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, cache = make_model(tmp_path / "model", a=b"1" * 100), tmp_path / "cache" / "weights.json"
    first = weights_digest(model, cache=cache)
    monkeypatch.setattr(weights, "_pieces", lambda size, sampled: pytest.fail("read again"))
    assert weights_digest(model, cache=cache) == first


def test_a_file_changed_in_place_is_read_again(tmp_path: Path) -> None:
    """Also when size and modification time are put back: the change time cannot be."""
    model, cache = make_model(tmp_path / "model", a=b"1" * 100), tmp_path / "weights.json"
    first = weights_digest(model, cache=cache)
    file = model / "a.safetensors"
    times = file.stat()
    file.write_bytes(b"2" * 100)
    os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert weights_digest(model, cache=cache) != first


@pytest.mark.parametrize("content", [b"", b"{", b"[1]"])
def test_a_damaged_cache_is_ignored(tmp_path: Path, content: bytes) -> None:
    model, cache = make_model(tmp_path / "model", a=b"1"), tmp_path / "weights.json"
    cache.write_bytes(content)
    assert weights_digest(model, cache=cache) == weights_digest(model)


def test_progress_ends_at_the_total(tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    weights_digest(
        make_model(tmp_path / "m", a=b"12", b=b"345"), progress=lambda done, total: seen.append((done, total))
    )
    assert seen == [(2, 5), (5, 5)]


def test_a_folder_without_weights_is_an_error_that_says_so(tmp_path: Path) -> None:
    with pytest.raises(KveikError, match="no weight files"):
        weights_digest(tmp_path)

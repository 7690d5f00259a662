"""A restart forgets nothing that still counts, and no file can harm a start."""

import io
import logging
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from kveik.fleet.announcement import EngineAnnouncement
from kveik.router.engines import EngineView
from kveik.router.prefix_file import PrefixKeeper, decoded, write
from kveik.router.prefix_index import ApproximateIndex, Entries


class Wall:
    """The time of day."""

    now_s = 1.7e9

    def __call__(self) -> float:
        return self.now_s


def engine(name: str, slot: int, namespace: str = "n") -> EngineView:
    said = EngineAnnouncement(url=f"http://{name}:8000", engine_id=name, namespace=namespace)
    return EngineView(said, slot)


def keys(seed: int, count: int = 30) -> np.ndarray[tuple[int], np.dtype[np.uint64]]:
    return np.random.default_rng(seed).integers(1, 1 << 64, size=count, dtype=np.uint64)


class Router:
    """What a router has to do with prefixes; its loop's clock starts anywhere."""

    def __init__(self, path: Path | None, wall: Wall, loop_s: float = 5000.0) -> None:
        self.now_s = loop_s
        self.index = ApproximateIndex(1 << 16, expire_s=600.0, start_s=loop_s)
        self.keeper = PrefixKeeper(path, self.index, secret=1 << 63 | 5, clock=wall)

    def save(self, *engines: EngineView) -> bool:
        to_save = self.keeper.to_save(engines)
        if to_save is not None:
            self.keeper.save(to_save)
        return to_save is not None

    def depths(self, seed: int, count: int = 30) -> dict[int, int]:
        return dict(self.index.depths(keys(seed, count), self.now_s))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "runtime" / "prefixes"


def test_after_a_restart_each_engine_holds_what_it_was_sent_whatever_its_slot(path: Path) -> None:
    wall = Wall()
    before = Router(path, wall)
    before.index.add(keys(1), 0, before.now_s)
    before.index.add(keys(2), 1, before.now_s)
    before.index.add(keys(1)[:10], 1, before.now_s)
    assert before.save(engine("a", 0), engine("b", 1))
    after = Router(path, wall, loop_s=3.0)
    assert after.keeper.secret == before.keeper.secret
    assert after.depths(1) == {}, "no engine is there yet"
    after.keeper.adopt(engine("b", 0))
    assert after.depths(1) == {0: 10}
    after.keeper.adopt(engine("a", 63))
    assert after.depths(1) == {63: 30, 0: 10}
    assert after.depths(2) == {0: 30}


def test_the_time_without_a_router_counts(path: Path) -> None:
    wall = Wall()
    before = Router(path, wall)
    before.index.add(keys(1), 0, before.now_s)
    before.now_s += 400.0
    before.index.add(keys(2), 0, before.now_s)
    before.save(engine("a", 0))
    wall.now_s += 300.0
    after = Router(path, wall, loop_s=77.0)
    after.keeper.adopt(engine("a", 0))
    assert after.depths(1) == {}
    assert after.depths(2) == {0: 30}
    after.now_s += 290.0
    assert after.depths(2) == {0: 30}
    after.now_s += 20.0
    assert after.depths(2) == {}


def test_an_engine_with_another_address_or_namespace_is_another_engine(path: Path) -> None:
    before = Router(path, Wall())
    before.index.add(keys(1), 0, before.now_s)
    before.save(engine("a", 0))
    after = Router(path, Wall())
    after.keeper.adopt(engine("a", 0, namespace="other"))
    after.keeper.adopt(engine("b", 1))
    assert after.depths(1) == {}


def test_what_is_restored_is_given_once(path: Path) -> None:
    """An engine that leaves and comes back after that has lost its cache."""
    before = Router(path, Wall())
    before.index.add(keys(1), 0, before.now_s)
    before.save(engine("a", 0), engine("b", 1))
    after = Router(path, Wall())
    after.keeper.adopt(engine("a", 0))
    after.index.forget_engine(0)
    after.keeper.adopt(engine("a", 0))
    assert after.depths(1) == {}


def test_a_large_index_is_restored_in_full(path: Path) -> None:
    before = Router(path, Wall())
    for seed in range(200):
        before.index.add(keys(seed, 60), seed % 3, before.now_s)
    before.save(*(engine(str(slot), slot) for slot in range(3)))
    after = Router(path, Wall())
    for slot in range(3):
        after.keeper.adopt(engine(str(slot), slot))
    assert after.index.size >= 0.99 * before.index.size
    whole = sum(after.depths(seed, 60) == {seed % 3: 60} for seed in range(200))
    assert whole >= 190


def test_saving_on_a_thread_does_not_hinder_the_index_that_goes_on_learning(path: Path) -> None:
    before = Router(path, Wall())
    for seed in range(100):
        before.index.add(keys(seed), 0, before.now_s)
    to_save = before.keeper.to_save([engine("a", 0)])
    assert to_save is not None
    saving = threading.Thread(target=before.keeper.save, args=(to_save,))
    saving.start()
    for seed in range(100, 2000):
        before.index.add(keys(seed), 0, before.now_s)
    saving.join()
    after = Router(path, Wall())
    after.keeper.adopt(engine("a", 0))
    assert sum(after.depths(seed) == {0: 30} for seed in range(100)) >= 95


def test_nothing_is_written_while_nothing_changes(path: Path) -> None:
    router = Router(path, Wall())
    assert not router.save()
    router.index.add(keys(1), 0, router.now_s)
    assert router.save(engine("a", 0))
    router.index.add(keys(1), 0, router.now_s)
    assert not router.save(engine("a", 0))
    assert path.stat().st_mode & 0o777 == 0o600
    assert [file.name for file in path.parent.iterdir()] == ["prefixes"]


def test_without_a_file_nothing_is_kept() -> None:
    router = Router(None, Wall())
    router.index.add(keys(1), 0, router.now_s)
    assert not router.save(engine("a", 0))
    router.keeper.adopt(engine("a", 0))
    assert router.keeper.secret == 1 << 63 | 5


@pytest.mark.parametrize(
    "damage",
    [
        lambda raw: b"",
        lambda raw: raw[:-1],
        lambda raw: raw[:40],
        lambda raw: raw[:-8] + b"12345678",
        lambda raw: raw.replace(b"prefixes 1", b"prefixes 2"),
        lambda raw: b"\xff" * 100,
        lambda raw: raw.replace(b'"secret":', b'"secret":"x",'),
        lambda raw: b'{"more":' + b"[" * 100_000,
    ],
)
def test_a_damaged_file_is_ignored_and_said(path: Path, damage: object, caplog: pytest.LogCaptureFixture) -> None:
    before = Router(path, Wall())
    before.index.add(keys(1), 0, before.now_s)
    before.save(engine("a", 0))
    path.write_bytes(damage(path.read_bytes()))  # type: ignore[operator]
    with caplog.at_level(logging.WARNING):
        after = Router(path, Wall())
    assert "prefix index" in caplog.text
    after.keeper.adopt(engine("a", 0))
    assert after.depths(1) == {}
    after.index.add(keys(2), 0, after.now_s)
    assert after.save(engine("a", 0)), "it is replaced"


def test_a_folder_that_cannot_be_written_is_said_and_does_no_harm(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("in the way")
    router = Router(tmp_path / "file" / "prefixes", Wall())
    router.index.add(keys(1), 0, router.now_s)
    with caplog.at_level(logging.WARNING):
        router.save(engine("a", 0))
    assert "cannot save the prefix index" in caplog.text


def test_each_piece_is_written_before_the_next_is_made_so_that_memory_holds_one() -> None:
    file, sizes = io.BytesIO(), [3, 0, 2]
    sent = [Entries(np.arange(n, dtype=np.uint64), np.ones(n, np.uint64), np.zeros(n, np.float32)) for n in sizes]
    seen: list[int] = []

    def pieces() -> Iterator[Entries]:
        for piece in sent:
            seen.append(file.tell())
            yield piece

    write(file, 7, {0: "a"}, pieces(), now_s=100.0)
    entry_bytes = 8 + 8 + 4
    assert [after - seen[0] for after in seen] == [0, 3 * entry_bytes, 3 * entry_bytes]
    saved = decoded(file.getvalue(), now_s=110.0)
    assert (saved.secret, saved.engines) == (7, {0: "a"})
    assert saved.entries.keys.tolist() == [0, 1, 2, 0, 1]
    assert saved.entries.ages_s.tolist() == [10.0] * 5

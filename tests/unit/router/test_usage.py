import sqlite3
import threading
from pathlib import Path

import pytest

from kveik.clock import FakeClock
from kveik.errors import ConfigError
from kveik.router import usage
from kveik.router.records import RequestRecord
from kveik.router.usage import DAYS_KEPT, Usage
from tests.unit.router.rig import interpreted_only

DAY_S = 86_400.0


def request(key: str = "team", model: str = "m", **fields: object) -> RequestRecord:
    given = {"engine": "e", "prompt_tokens": 10, "cached_tokens": 4, "completion_tokens": 3, **fields}
    return RequestRecord("id", "POST", "/v1/completions", key_name=key, model=model, **given)


def save(counted: Usage) -> None:
    batch = counted.take()
    if batch is not None:
        counted.write(batch)


def test_requests_and_tokens_add_up_for_each_key_and_model() -> None:
    counted = Usage(clock=FakeClock(0.0))
    for record in (request(), request(), request(model="n"), request(key="other", cached_tokens=-1)):
        counted(record)
    assert counted.document()["usage"] == [
        {"key": "other", "model": "m", "requests": 1, "prompt_tokens": 10, "cached_tokens": 0, "completion_tokens": 3},
        {"key": "team", "model": "m", "requests": 2, "prompt_tokens": 20, "cached_tokens": 8, "completion_tokens": 6},
        {"key": "team", "model": "n", "requests": 1, "prompt_tokens": 10, "cached_tokens": 4, "completion_tokens": 3},
    ]


def test_requests_that_no_engine_took_are_not_counted() -> None:
    counted = Usage(clock=FakeClock(0.0))
    counted(request(engine="", model="invented"))
    assert counted.document() == {"usage": [], "days": []}


def test_unknown_tokens_count_as_none() -> None:
    counted = Usage(clock=FakeClock(0.0))
    counted(request(prompt_tokens=-1, cached_tokens=-1, completion_tokens=-1))
    (row,) = counted.document()["usage"]
    assert (row["requests"], row["prompt_tokens"], row["completion_tokens"]) == (1, 0, 0)


def test_usage_survives_a_restart_and_is_the_same_before_and_after_it_was_written(tmp_path: Path) -> None:
    path, clock = tmp_path / "state" / "usage.sqlite", FakeClock(1_000_000_000.0)
    counted = Usage(path, clock)
    counted(request())
    before = counted.document()
    save(counted)
    assert counted.document() == before
    counted(request())
    save(counted)
    again = Usage(path, clock)
    assert again.document() == counted.document()
    assert again.document()["usage"][0]["requests"] == 2
    assert counted.take() is None


def test_two_routers_can_count_into_one_file(tmp_path: Path) -> None:
    path = tmp_path / "usage.sqlite"
    routers = [Usage(path), Usage(path)]
    for counted in routers:
        for _ in range(20):
            counted(request())
    threads = [threading.Thread(target=save, args=(counted,)) for counted in routers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert Usage(path).document()["usage"][0]["requests"] == 40


def test_days_are_told_apart_in_utc_and_old_ones_leave_memory_but_not_the_sums(tmp_path: Path) -> None:
    path, clock = tmp_path / "usage.sqlite", FakeClock(0.0)
    counted = Usage(path, clock)
    clock.advance(DAY_S - 1)
    counted(request())
    clock.advance(1)
    counted(request())
    assert [row["day"] for row in counted.document()["days"]] == ["1970-01-01", "1970-01-02"]
    save(counted)
    clock.advance((DAYS_KEPT - 1) * DAY_S)
    counted(request())
    in_memory = counted.document()
    save(counted)
    for document in (in_memory, Usage(path, clock).document()):
        assert [row["day"] for row in document["days"]] == ["1970-01-02", "1970-02-01"]
        assert document["usage"][0]["requests"] == 3


def test_what_could_not_be_written_is_kept_and_counted_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "usage.sqlite"
    counted = Usage(path)
    counted(request())
    batch = counted.take()
    assert batch is not None
    locked = sqlite3.connect(path)
    locked.execute("BEGIN EXCLUSIVE")
    monkeypatch.setattr(usage, "LOCK_WAIT_S", 0.01)
    with pytest.raises(OSError, match="locked"):
        counted.write(batch)
    counted.not_written(batch)
    locked.close()
    counted(request())
    assert counted.document()["usage"][0]["requests"] == 2
    save(counted)
    assert Usage(path).document()["usage"][0]["requests"] == 2
    assert counted.document()["usage"][0]["requests"] == 2


def test_a_file_that_was_deleted_is_begun_anew(tmp_path: Path) -> None:
    path = tmp_path / "usage.sqlite"
    counted = Usage(path)
    path.unlink()
    counted(request())
    save(counted)
    assert Usage(path).document()["usage"][0]["requests"] == 1


def test_a_file_that_is_no_database_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "usage.sqlite"
    path.write_text("something else entirely, long enough to be no empty database" * 20)
    with pytest.raises(ConfigError, match=r"usage\.sqlite"):
        Usage(path)


@interpreted_only
def test_pairs_of_key_and_model_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(usage, "PAIRS_MAX", 3)
    counted = Usage(clock=FakeClock(0.0))
    for number in range(6):
        counted(request(model=f"m{number}"))
        counted.take()
    assert [row["model"] for row in counted.document()["usage"]] == ["m0", "m1", "m2", "other"]
    assert counted.document()["usage"][-1]["requests"] == 3
    assert "4 pairs" in repr(counted)

"""Estimates from earlier starts."""

from pathlib import Path

from kveik.launch.start_times import KEPT, StartTimes


def test_the_estimate_is_the_median_of_the_last_starts(tmp_path: Path) -> None:
    times = StartTimes(tmp_path / "starts.json")
    assert times.estimate("engine-1") is None
    for seconds in (900.0, 20.0, 21.0, 22.0, 23.0, 300.0):
        times.add("engine-1", seconds)
    again = StartTimes(tmp_path / "starts.json")
    assert again.estimate("engine-1") == 22.0
    assert again.estimate("router") is None
    assert repr(again).endswith("starts.json, 1 parts)")


def test_only_the_last_starts_are_kept(tmp_path: Path) -> None:
    times = StartTimes(tmp_path / "starts.json")
    for _ in range(KEPT):
        times.add("router", 100.0)
    for _ in range(KEPT):
        times.add("router", 1.0)
    assert times.estimate("router") == 1.0


def test_a_damaged_file_counts_as_none_and_is_replaced(tmp_path: Path) -> None:
    file = tmp_path / "starts.json"
    file.write_text('{"router": "soon"}')
    times = StartTimes(file)
    assert times.estimate("router") is None
    times.add("router", 2.0)
    assert StartTimes(file).estimate("router") == 2.0


def test_a_file_that_cannot_be_written_is_no_trouble(tmp_path: Path) -> None:
    times = StartTimes(tmp_path / "none" / "starts.json")
    times.add("router", 2.0)
    assert times.estimate("router") == 2.0

"""A loop that stands still is seen, and nothing else is taken for it."""

from pathlib import Path

from kveik.clock import FakeClock
from kveik.pulse import AWAY_S, BEAT_S, VARIABLE, Pulse, PulseWatch


def test_a_pulse_that_beats_is_never_silent_for_long(tmp_path: Path) -> None:
    clock = FakeClock()
    pulse, watch = Pulse(tmp_path / "p", clock), PulseWatch(tmp_path / "p", clock)
    silent_s = []
    for _ in range(100):
        clock.advance(BEAT_S / 2)
        pulse.beat()
        silent_s.append(watch.silent_s())
    assert max(silent_s) <= BEAT_S


def test_silence_is_counted_from_the_last_beat_that_was_seen(tmp_path: Path) -> None:
    clock = FakeClock()
    pulse, watch = Pulse(tmp_path / "p", clock), PulseWatch(tmp_path / "p", clock)
    pulse.beat()
    assert watch.silent_s() == 0
    for second in range(1, 10):
        clock.advance(1)
        assert watch.silent_s() == second


def test_a_process_that_never_beats_is_silent_from_the_beginning(tmp_path: Path) -> None:
    clock = FakeClock()
    watch = PulseWatch(tmp_path / "none", clock)
    for _ in range(4):
        clock.advance(3)
        watch.silent_s()
    assert watch.silent_s() == 12


def test_who_was_away_has_seen_nothing(tmp_path: Path) -> None:
    clock = FakeClock()
    watch = PulseWatch(tmp_path / "p", clock)
    clock.advance(AWAY_S + 1)
    assert watch.silent_s() == 0


def test_it_beats_once_in_a_while_only(tmp_path: Path) -> None:
    clock = FakeClock()
    pulse = Pulse(tmp_path / "p", clock)
    pulse.beat()
    (tmp_path / "p").unlink()
    clock.advance(BEAT_S / 2)
    pulse.beat()
    assert not (tmp_path / "p").exists()
    clock.advance(BEAT_S)
    pulse.beat()
    assert (tmp_path / "p").exists()


def test_the_variable_is_for_one_process_only(tmp_path: Path) -> None:
    environ = {VARIABLE: str(tmp_path / "p"), "OTHER": "1"}
    Pulse.asked_for(environ).beat()
    assert (tmp_path / "p").exists()
    assert environ == {"OTHER": "1"}


def test_without_a_path_and_with_one_that_cannot_be_written_nothing_happens(tmp_path: Path) -> None:
    Pulse.asked_for({}).beat()
    Pulse(tmp_path / "no" / "such" / "folder").beat()
    assert not list(tmp_path.iterdir())

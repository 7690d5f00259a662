from kveik.watchdog.ageing import JUDGED_EVERY, Ageing
from kveik.watchdog.leaks import VITALS_PERIOD_S, Limits, Vitals

GIB = 2.0**30
HOURS = 4


def grown(ageing: Ageing, bytes_a_minute: float, minutes: int, begin: int = 0) -> list[str]:
    """What was told while memory grew."""
    told = []
    for minute in range(begin, begin + minutes):
        now_s = minute * VITALS_PERIOD_S

        def vitals(now_s: float = now_s, minute: int = minute) -> Vitals:
            return Vitals(now_s, host_bytes=10 * GIB + bytes_a_minute * minute)

        told += [words for _, words in ageing.step(now_s, vitals, lambda: Limits(host_bytes=20 * GIB))]
    return told


def test_a_leak_is_told_once_and_stays_a_warning() -> None:
    ageing = Ageing("engine-1")
    (told,) = grown(ageing, GIB / 100, HOURS * 60)
    assert "host memory" in told
    assert "grows by 14.40 GiB a day" in told
    assert [decay.kind for decay in ageing.decayed] == ["host memory"]


def test_an_engine_that_was_started_anew_begins_anew() -> None:
    ageing = Ageing("engine-1")
    assert grown(ageing, GIB / 100, HOURS * 60)
    ageing.begin_anew()
    assert ageing.decayed == ()
    assert grown(ageing, 0.0, 30) == []


def test_an_engine_that_does_not_grow_has_no_warning() -> None:
    ageing = Ageing("engine-1")
    assert grown(ageing, 0.0, HOURS * 60) == []
    assert ageing.decayed == ()


def test_vitals_are_taken_once_a_minute_and_judged_every_few() -> None:
    ageing, taken = Ageing("engine-1"), []

    def vitals() -> Vitals:
        taken.append(1)
        return Vitals(0.0)

    for second in range(0, 300, 5):
        ageing.step(float(second), vitals, Limits)
    assert len(taken) == 5 == JUDGED_EVERY

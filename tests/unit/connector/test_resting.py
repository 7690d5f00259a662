"""The engine rests while all that is left to do is to wait for a load, and never otherwise."""

from kveik.connector.jobs import KveikWorkerMetadata
from kveik.connector.resting import Rest
from tests.unit.connector.test_scheduler import Bench, request, step

REST_S = 0.002


def test_it_rests_as_soon_as_no_step_can_be_under_way() -> None:
    rest = Rest(REST_S, steps_ahead=2)
    assert [rest.before_step(0, 0, 1) for _ in range(4)] == [0.0, 0.0, REST_S, REST_S]


def test_a_step_that_computes_or_begins_something_is_not_held_up() -> None:
    rest = Rest(REST_S, steps_ahead=1)
    work = [(0, 0), (0, 0), (5, 0), (0, 0), (0, 0), (0, 1), (0, 0), (0, 0)]
    assert [rest.before_step(tokens, jobs, 1) > 0 for tokens, jobs in work] == [
        False, True, False, False, True, False, False, True,
    ]  # fmt: skip


def test_without_a_load_or_with_no_rest_set_it_never_rests() -> None:
    assert not any(Rest(REST_S, 0).before_step(0, 0, 0) for _ in range(5))
    assert not any(Rest(0.0, 0).before_step(0, 0, 1) for _ in range(5))


def test_the_scheduler_rests_from_the_load_s_second_step_until_it_ended() -> None:
    bench = Bench()
    bench.side._rest = Rest(REST_S, steps_ahead=1)
    bench.agent.automatic = b"\1" * 9
    asked = request()
    bench.side.add(asked)
    bench.side.offer(asked, 0)
    bench.allocate(asked, 96, list(range(1, 8)))
    rests = []
    for _ in range(3):
        bench.side.plan_step(step())
        rests.append(bench.side.rest_s)
    assert rests == [0.0, 0.0, REST_S]

    bench.side.step_done(KveikWorkerMetadata({}, {"r": set()}, {"r": 0.1}))
    bench.side.plan_step(step())
    assert bench.side.rest_s == 0.0

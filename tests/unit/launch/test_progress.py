"""What people read while a fleet starts."""

from kveik.launch.progress import AGAIN_S, StartProgress, outcome
from kveik.supervise.messages import ProcessView


def view(state: str, name: str = "engine-1", pid: int = 7, **fields: str) -> ProcessView:
    words = {"kind": "engine", **fields}
    return ProcessView(name=name, state=state, pid=pid, **words)  # type: ignore[arg-type]


def progress(known_s: float | None = None) -> StartProgress:
    return StartProgress(lambda part: known_s, 0.0)


def told(follow: StartProgress, seen: ProcessView, now_s: float) -> list[str]:
    return [line.told for line in follow.look([seen], now_s)]


def test_a_start_is_told_with_its_mode_what_it_took_before_and_what_it_took_now() -> None:
    follow = progress(42.4)
    assert told(follow, view("waiting", pid=0), 0.0) == []
    assert told(follow, view("starting", mode="compiled"), 1.0) == [
        "engine-1 is starting (compiled), about 42 s as in earlier starts"
    ]
    assert told(follow, view("starting", mode="compiled"), 2.0) == []
    assert told(follow, view("starting", mode="compiled"), 1.0 + AGAIN_S) == [
        "engine-1 is still starting: 10 s of about 42 s"
    ]
    (line,) = follow.look([view("ready")], 31.5)
    assert line.told == "engine-1 is ready after 30.5 s"
    assert line.fields == {"part": "engine-1", "state": "ready", "seconds": 30.5}
    assert follow.took_s == {"engine-1": 30.5}


def test_what_was_never_measured_is_told_without_an_estimate() -> None:
    follow = progress()
    assert told(follow, view("starting"), 1.0) == ["engine-1 is starting"]
    assert told(follow, view("starting"), 61.0) == ["engine-1 is still starting: 60 s"]
    assert told(follow, view("starting"), 62.0) == []


def test_a_part_that_runs_already_is_no_start() -> None:
    follow = progress()
    assert told(follow, view("ready"), 1.0) == ["engine-1 runs"]
    assert follow.took_s == {}


def test_a_fall_to_a_simpler_mode_is_told_with_the_reason() -> None:
    follow = progress()
    told(follow, view("starting", mode="compiled"), 1.0)
    assert told(follow, view("stopping", why="no compiler; mode eager is tried"), 2.0) == [
        "engine-1 is stopping: no compiler; mode eager is tried"
    ]
    assert told(follow, view("starting", pid=8, mode="eager"), 3.0) == ["engine-1 is starting (eager)"]
    ready = view("ready", pid=8, mode="eager", degraded="mode compiled did not start: no compiler")
    assert told(follow, ready, 9.0) == [
        "engine-1 is ready after 6.0 s, degraded to eager: mode compiled did not start: no compiler"
    ]


def test_a_start_is_over_when_nothing_more_happens_by_itself() -> None:
    given_up = view("failed")
    ended = view("waiting", "engine-2", why="it ended; it waits for an order")
    assert not outcome([view("starting"), view("ready", "router")]).over
    assert outcome([view("starting"), view("ready", "router")]).pending == ("engine-1",)
    assert outcome([view("ready"), view("stopped", "router")]).over
    assert outcome([given_up, ended]).over
    assert outcome([given_up, ended]).failed == (given_up, ended)
    assert not outcome([view("waiting", "router", kind="router", why="it is started again in 1 s")]).over

"""What a hold means for requests under way: isolation moves those that wait, draining moves none, streams go on."""

import asyncio
from typing import Any

from kveik.breaker import CLOSED
from kveik.fleet.lifecycle import State
from kveik.fleet.membership import Member, Membership
from tests.unit.router.rig import (
    CHAT,
    DONE,
    EVENT,
    Request,
    Response,
    Rig,
    ScriptedEngine,
    answer,
    hang,
    rig,
    run,
    stream,
    until,
)

STREAM: dict[str, Any] = {**CHAT, "stream": True}
OK = b'{"choices":[]}'


class Gate:
    """An engine that begins a stream and ends it when it may."""

    def __init__(self) -> None:
        self.may_end = asyncio.Event()

    async def __call__(self, request: Request, writer: asyncio.StreamWriter) -> None:
        await stream(EVENT, end=False)(request, writer)
        await self.may_end.wait()
        writer.write(b"%x\r\n%s\r\n0\r\n\r\n" % (len(DONE), DONE))


def hold(made: Rig, *engines: ScriptedEngine, **states: State) -> None:
    """What a router does when its registry shows these states."""
    members = {
        e.announcement.name: Member(announcement=e.announcement, state=states.get(e.name, State.READY), why="a reason")
        for e in engines
    }
    made.router.engines.apply(Membership(members))
    made.router.engines_changed()


async def asked_first(
    made: Rig, name: str, count: int, body: object = CHAT, **given: Any
) -> list[asyncio.Task[Response]]:
    """Requests that are under way at this engine."""
    others = [engine for engine in made.router.engines if engine.name != name]
    for engine in others:
        engine.in_flight += 100
    tasks = [asyncio.ensure_future(made.ask(body, **given)) for _ in range(count)]
    await until(lambda: made.engine(name).in_flight == count, "the requests are under way")
    for engine in others:
        engine.in_flight -= 100
    return tasks


def test_what_an_isolated_engine_has_not_begun_is_answered_by_another_at_once() -> None:
    async def test() -> None:
        sick, good = ScriptedEngine(hang), ScriptedEngine(answer(OK))
        async with rig(sick, good, first_byte_s=600) as made:
            waiting = await asked_first(made, "a", 12)
            await until(lambda: len(sick.requests) == 12, "the engine has them")
            hold(made, sick, good, a=State.ISOLATED)
            assert [(r.status, r.body) for r in await asyncio.gather(*waiting)] == [(200, OK)] * 12
            assert {(record.engine, record.attempts, record.outcome) for record in made.records} == {("b", 2, "ok")}
            assert made.engine("a").breaker.state == CLOSED, "whoever isolated it has judged it, not the requests"

    run(test)


def test_a_stream_whose_head_alone_has_come_is_moved_too() -> None:
    async def test() -> None:
        async def head_only(request: Request, writer: asyncio.StreamWriter) -> None:
            await stream(end=False)(request, writer)
            await writer.drain()
            await asyncio.sleep(3600)

        sick, good = ScriptedEngine(head_only), ScriptedEngine(stream(EVENT, DONE))
        async with rig(sick, good, first_byte_s=600) as made:
            (waiting,) = await asked_first(made, "a", 1, STREAM)
            await until(lambda: len(sick.requests) == 1, "the engine has it")
            hold(made, sick, good, a=State.ISOLATED)
            assert (await waiting).body == EVENT + DONE

    run(test)


def test_a_stream_that_has_begun_goes_on_at_an_isolated_engine() -> None:
    async def test() -> None:
        gate = Gate()
        sick, good = ScriptedEngine(gate), ScriptedEngine(answer(OK))
        async with rig(sick, good) as made:
            (begun,) = await asked_first(made, "a", 1, STREAM)
            await until(lambda: not made.router.waiting_on(made.engine("a")), "it has begun")
            hold(made, sick, good, a=State.ISOLATED)
            gate.may_end.set()
            response = await begun
            assert (response.whole, response.body) == (True, EVENT + DONE)
            assert not good.requests

    run(test)


def test_what_could_do_harm_twice_stays_with_the_engine_that_has_it() -> None:
    async def test() -> None:
        may_answer = asyncio.Event()

        async def late(request: Request, writer: asyncio.StreamWriter) -> None:
            await may_answer.wait()
            await answer(OK)(request, writer)

        sick, good = ScriptedEngine(late), ScriptedEngine(answer(b"other"))
        async with rig(sick, good, first_byte_s=600) as made:
            (once,) = await asked_first(made, "a", 1, target="/v1/load_lora_adapter")
            await until(lambda: len(sick.requests) == 1, "the engine has it")
            hold(made, sick, good, a=State.ISOLATED)
            may_answer.set()
            assert (await once).body == OK
            assert not good.requests

    run(test)


def test_without_another_engine_they_wait_and_move_as_soon_as_there_is_one() -> None:
    async def test() -> None:
        sick, good = ScriptedEngine(hang), ScriptedEngine(answer(OK))
        async with rig(sick, good, first_byte_s=600) as made:
            made.join(sick)
            (waiting,) = await asked_first(made, "a", 1)
            hold(made, sick, a=State.ISOLATED)
            await until(lambda: len(sick.requests) == 1, "the engine has it")
            assert not waiting.done()
            hold(made, sick, good, a=State.ISOLATED)
            assert (await waiting).body == OK

    run(test)


def test_draining_moves_nothing_and_sends_nothing_more() -> None:
    async def test() -> None:
        gate, may_answer = Gate(), asyncio.Event()

        async def late(request: Request, writer: asyncio.StreamWriter) -> None:
            if b"stream" in request.body:
                await gate(request, writer)
            else:
                await may_answer.wait()
                await answer(OK)(request, writer)

        leaving, other = ScriptedEngine(late), ScriptedEngine(answer(b"other"))
        async with rig(leaving, other, first_byte_s=600) as made:
            waiting = await asked_first(made, "a", 1)
            others = made.engine("b")
            others.in_flight += 100
            begun = asyncio.ensure_future(made.ask(STREAM))
            await until(lambda: len(leaving.requests) == 2, "both are under way")
            others.in_flight -= 100
            hold(made, leaving, other, a=State.DRAINING)
            assert [(await made.ask()).body for _ in range(4)] == [b"other"] * 4
            may_answer.set()
            gate.may_end.set()
            assert [r.body for r in await asyncio.gather(*waiting, begun)] == [OK, EVENT + DONE]
            assert len(leaving.requests) == 2

    run(test)


def test_an_engine_that_comes_back_from_a_hold_begins_with_few_requests() -> None:
    async def test() -> None:
        held, other = ScriptedEngine(answer(OK)), ScriptedEngine(answer(OK))
        async with rig(held, other, slow_start_s=60.0) as made:
            assert made.engine("a").share == 1.0, "an engine that is new gets its full share"
            for state in (State.DRAINING, State.ANNOUNCED, State.READY):
                hold(made, held, other, a=state)
            assert made.engine("a").share < 0.5
            assert made.engine("b").share == 1.0

    run(test)

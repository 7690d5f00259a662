"""The router as a whole, over real sockets: finding engines, losing them, and getting them back."""

import asyncio
import json

from kveik.breaker import CLOSED
from kveik.router.care import EngineCare
from tests.unit.router.rig import CHAT, ScriptedEngine, answer, die, hang, interpreted_only, rig, run, until

OK = b'{"ok":true}'


def test_a_model_that_nobody_serves_is_a_404_that_names_the_models() -> None:
    async def test() -> None:
        async with rig(ScriptedEngine(answer(OK)), ScriptedEngine(answer(OK), model="other")) as made:
            response = await made.ask({**CHAT, "model": "nobody's"})
            assert (response.status, response.error["code"]) == (404, "model_not_found")
            assert "m, other" in response.error["message"]

    run(test)


def test_each_model_goes_to_the_engines_that_serve_it() -> None:
    async def test() -> None:
        one, other = ScriptedEngine(answer(b"one")), ScriptedEngine(answer(b"other"), model="other")
        async with rig(one, other) as made:
            for _ in range(5):
                assert (await made.ask()).body == b"one"
                assert (await made.ask({**CHAT, "model": "other"})).body == b"other"

    run(test)


def test_a_request_waits_for_an_engine_whose_models_are_not_known_yet() -> None:
    """As after a restart of the router: an unknown model is one that nobody has only when everybody was asked."""

    async def test() -> None:
        engine = ScriptedEngine(answer(OK))
        async with rig(engine) as made:
            view = made.engine("a")
            view.models = ()
            made.router.engines_changed()
            asked = asyncio.ensure_future(made.ask())
            await asyncio.sleep(0.1)
            assert not asked.done()
            view.models = ("m",)
            made.router.engines_changed()
            assert (await asked).body == OK

    run(test)


def test_without_any_engine_a_request_waits_for_one_and_is_then_refused_in_words() -> None:
    async def test() -> None:
        engine = ScriptedEngine(answer(OK))
        async with rig(engine, engine_wait_s=0.5) as made:
            made.engine("a").state = "draining"
            made.router.engines_changed()
            response = await made.ask()
            assert response.status == 503
            assert response.headers["retry-after"] == "2"
            assert "a is draining" in response.error["message"]
            waiting = asyncio.ensure_future(made.ask())
            await asyncio.sleep(0.1)
            made.engine("a").state = "ready"
            made.router.engines_changed()
            assert (await waiting).status == 200

    run(test)


def test_a_dead_engine_is_left_out_and_comes_back_by_itself() -> None:
    async def test() -> None:
        first, second = ScriptedEngine(answer(b"first")), ScriptedEngine(answer(b"second"))
        async with rig(first, second, slow_start_s=0.4) as made:
            await first.stop()
            for _ in range(20):
                assert (await made.ask()).body == b"second"
            assert not made.engine("a").takes_requests
            await first.start()
            await until(lambda: bool(made.engine("a").takes_requests), "it passed a trial", 3.0)
            assert made.engine("a").share < 1.0
            await until(lambda: made.engine("a").share == 1.0, "its share has grown", 3.0)
            bodies = {(await made.ask()).body for _ in range(10)}
            assert b"first" in bodies

    run(test)


def test_no_users_request_is_the_trial_of_an_engine_that_hangs() -> None:
    async def test() -> None:
        hung, good = ScriptedEngine(hang), ScriptedEngine(answer(OK))
        async with rig(hung, good, first_byte_s=0.2, probe_deadline_s=0.2, breaker_open_s=0.05) as made:
            made.engine("b").in_flight = 5
            await made.ask()
            made.engine("b").in_flight -= 5
            await until(lambda: hung.trials >= 3, "it was tried again and again")
            before = len(hung.requests)
            for _ in range(10):
                assert (await made.ask()).status == 200
            assert len(hung.requests) == before
            hung.handler = answer(OK)
            await until(lambda: made.engine("a").breaker.state == CLOSED, "it is back")

    run(test)


def test_the_last_engine_of_a_model_is_never_left_out() -> None:
    async def test() -> None:
        engine = ScriptedEngine(die)
        async with rig(engine, probe_deadline_s=0.2, quarantine_kills=0) as made:
            for _ in range(5):
                assert (await made.ask()).status == 502
            assert len(engine.requests) == 5
            engine.handler = answer(OK)
            assert (await made.ask()).status == 200

    run(test)


def test_an_engine_that_leaves_the_fleet_gets_nothing_new_and_finishes_what_it_has() -> None:
    async def test() -> None:
        go = asyncio.Event()

        async def handle(request: object, writer: asyncio.StreamWriter) -> None:
            await go.wait()
            await answer(b"slow")(request, writer)  # type: ignore[arg-type]

        leaving, staying = ScriptedEngine(handle), ScriptedEngine(answer(b"stays"))
        async with rig(leaving, staying) as made:
            made.engine("b").in_flight = 5
            slow = asyncio.ensure_future(made.ask())
            await until(lambda: bool(leaving.requests), "it has a request")
            made.engine("b").in_flight -= 5
            made.join(staying)
            for _ in range(5):
                assert (await made.ask()).body == b"stays"
            go.set()
            assert (await slow).body == b"slow"
            assert len(leaving.requests) == 1

    run(test)


@interpreted_only
def test_a_fault_of_the_routers_own_blames_no_engine_and_ends_one_connection() -> None:
    async def test() -> None:
        async with rig(ScriptedEngine(answer(OK))) as made:
            choose = made.router.choose
            made.router.choose = lambda exchange, now_s: 1 / 0  # type: ignore[method-assign, assignment, return-value]
            assert (await made.ask()).status == 500
            made.router.choose = choose  # type: ignore[method-assign]
            first_byte = made.router.first_byte
            made.router.first_byte = lambda exchange: 1 / 0  # type: ignore[method-assign, assignment]
            assert (await made.ask()).status == 500
            made.router.first_byte = first_byte  # type: ignore[method-assign]
            assert (await made.ask()).status == 200
            assert made.engine("a").breaker.failures_in_a_row == 0
            assert [record.outcome for record in made.records] == ["router", "router", "ok"]

    run(test)


def test_the_union_of_all_models_is_listed() -> None:
    async def test() -> None:
        async with rig(ScriptedEngine(answer(OK)), ScriptedEngine(answer(OK), model="other")) as made:
            care = made.router.care
            assert isinstance(care, EngineCare)
            for name in "ab":
                care.admit(made.engine(name))
            await until(lambda: len(made.router.engines.model_cards) == 2, "both are read")
            assert json.dumps(made.router.engines.model_cards).count('"id"') == 2

    run(test)


def test_a_long_prompt_may_be_silent_for_as_long_as_computing_it_takes() -> None:
    """Counters stand still while one step computes a whole prompt: only time tells such an engine from a hung one."""

    async def test() -> None:
        prompt = {**CHAT, "messages": [{"role": "user", "content": "word " * 2000}]}  # about 2,500 tokens

        async def handle(request: object, writer: asyncio.StreamWriter) -> None:
            await asyncio.sleep(1.2)
            await answer(OK)(request, writer)  # type: ignore[arg-type]

        silent, other = ScriptedEngine(handle), ScriptedEngine(answer(b"other"))
        silent.metrics = other.metrics = b'vllm:prompt_tokens_total{model_name="m"} 7.0\n'
        async with rig(silent, other, first_byte_s=0.2, slow_prefill_tokens_s=1500.0) as made:
            made.engine("b").in_flight = 50
            assert (await made.ask(prompt)).body == OK
            assert made.engine("a").takes_requests
            made.engine("a").prefill.tokens_s = 100_000.0  # it was seen to be much quicker: now its silence is strange
            assert (await made.ask(prompt)).body == b"other"
            made.engine("b").in_flight -= 50

    run(test)


def test_the_death_of_an_engine_is_lost_on_none_of_many_requests() -> None:
    async def test() -> None:
        dying, good = ScriptedEngine(hang), ScriptedEngine(answer(OK))
        async with rig(dying, good, retry_share=1.0) as made:
            made.engine("b").in_flight = 1000
            asked = [asyncio.ensure_future(made.ask({**CHAT, "seed": number})) for number in range(60)]
            await until(lambda: len(dying.requests) == 60, "all are under way")
            made.engine("b").in_flight -= 1000
            await dying.stop()
            assert [(await one).status for one in asked] == [200] * 60

    run(test)


@interpreted_only
def test_an_engine_is_not_out_for_ever_if_trying_it_out_failed_in_the_router() -> None:
    async def test() -> None:
        engine, other = ScriptedEngine(answer(OK)), ScriptedEngine(answer(OK))
        async with rig(engine, other) as made:
            bring_back = made.router.bring_back
            made.router.bring_back = lambda engine: 1 / 0  # type: ignore[method-assign, assignment]
            made.engine("a").breaker = made.engine("a").breaker.failed(0.0, timed_out=True)
            made.router.put_out(made.engine("a"), "as a test")
            await until(lambda: engine.trials >= 2, "it is tried again")
            made.router.bring_back = bring_back  # type: ignore[method-assign]
            await until(lambda: bool(made.engine("a").takes_requests), "it is back")

    run(test)


def test_an_engine_that_takes_anothers_place_serves_what_that_one_had() -> None:
    async def test() -> None:
        old, successor = ScriptedEngine(hang), ScriptedEngine(answer(OK), name="a")
        async with rig(old) as made:
            asked = asyncio.ensure_future(made.ask())
            await until(lambda: bool(old.requests), "it is under way")
            await successor.start()
            made.join(successor)
            assert made.engine("a").in_flight == 0
            await old.stop()
            assert (await asked).body == OK
            assert made.engine("a").breaker.failures_in_a_row == 0
            await successor.stop()

    run(test)

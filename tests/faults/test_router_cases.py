"""What users of routers suffer from, played on a whole router: simulated engines, real sockets, OpenAI's client.

The engines are simulated; each case says what the right result is.
"""

import contextlib
import random
import socket
import string
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import openai
import pytest

from kveik.config import SimEngineSettings
from kveik.simulate.server import SimServer
from tests.agents import wait_until
from tests.routers import RouterThread, SimProcess, percentile, timed

CLIENTS = 32


def client_of(url: str, **given: Any) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, **{"timeout": 30.0, **given})


def sim(**given: Any) -> SimServer:
    return SimServer(SimEngineSettings(port=0, **given))


def chat(client: openai.OpenAI, text: str, **given: Any) -> Any:
    options = {"model": "simulated", "max_tokens": 4, **given}
    return client.chat.completions.create(messages=[{"role": "user", "content": text}], **options)


def all_at_once(clients: int, calls: list[Callable[[], Any]]) -> list[Any]:
    with ThreadPoolExecutor(clients) as pool:
        return list(pool.map(lambda call: call(), calls))


def outcome(call: Callable[[], Any]) -> Any:
    """200, or status and code of the error."""
    try:
        call()
    except openai.APIStatusError as error:
        return error.status_code, error.code
    return 200


class TestClientErrorsDoNotOpenBreakers:
    """Half of the requests are too long for all engines, a quarter for one of them, and one engine calls that a 500."""

    def test_each_gets_what_is_its_due_and_no_breaker_opens(self, tmp_path: Path) -> None:
        with sim(max_model_tokens=1024) as short, sim(max_model_tokens=8192) as long:
            body = {"error": {"message": "This model's maximum context length is 1024 tokens", "type": "x"}}
            short.change_faults(status=500, status_body=body, containing="1500:")
            with RouterThread(tmp_path, [short.url, long.url]) as router:
                client = client_of(router.url)

                def ask(kind: str, number: int) -> Callable[[], Any]:
                    words = {"all": 9000, "one": 1500, "none": 20}[kind]
                    return lambda: outcome(lambda: chat(client, f"{words}: {number} " + "word " * words))

                kinds = ["all", "all", "one", "none"] * 50
                results = all_at_once(8, [ask(kind, number) for number, kind in enumerate(kinds)])
                by_kind = {kind: {r for k, r in zip(kinds, results, strict=True) if k == kind} for kind in set(kinds)}
                assert by_kind["none"] == {200}
                assert by_kind["one"] == {200}
                assert {status for status, _ in by_kind["all"]} == {400}
                for url in (short.url, long.url):
                    assert (router.engine(url)["breaker"], router.engine(url)["failures_in_a_row"]) == ("closed", 0)


@contextlib.contextmanager
def idle_cutting_relay(port: int, idle_s: float) -> Iterator[int]:
    """A TCP relay that closes connections on which nothing moves, as proxies do."""
    listening = socket.create_server(("127.0.0.1", 0))

    def pump(source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            source.settimeout(idle_s)
            while data := source.recv(65536):
                target.sendall(data)
        for sock in (source, target):
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)

    def relay(down: socket.socket) -> None:
        with down, contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)) as up:
            rising = threading.Thread(target=_drain_up, args=(down, up), daemon=True)
            rising.start()
            pump(up, down)
            rising.join()

    def serve() -> None:
        with contextlib.suppress(OSError):
            while True:
                down, _ = listening.accept()
                threading.Thread(target=relay, args=(down,), daemon=True).start()

    threading.Thread(target=serve, daemon=True).start()
    yield listening.getsockname()[1]
    listening.shutdown(socket.SHUT_RDWR)  # which wakes the thread; closing alone does not
    listening.close()


def _drain_up(down: socket.socket, up: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := down.recv(65536):
            up.sendall(data)
        up.shutdown(socket.SHUT_WR)


class TestSilentPrefillBehindAProxy:
    """The proxy cuts after 2 s without a byte; the first token takes 6."""

    @pytest.fixture
    def through_proxy(self, tmp_path: Path) -> Iterator[tuple[SimServer, openai.OpenAI]]:
        with contextlib.ExitStack() as stack:
            engine = stack.enter_context(sim())
            router = stack.enter_context(RouterThread(tmp_path, [engine.url], comment_after_s=0.7))
            port = stack.enter_context(idle_cutting_relay(int(router.url.rpartition(":")[2]), 2.0))
            yield engine, client_of(f"http://127.0.0.1:{port}")

    def test_the_sdk_sees_a_full_answer_and_nothing_odd(self, through_proxy: tuple[SimServer, openai.OpenAI]) -> None:
        engine, client = through_proxy
        engine.change_faults(first_byte_delay_s=6.0)
        chunks = list(chat(client, "hello", stream=True))
        text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
        engine.change_faults(reset=True)
        assert text == "".join(
            chunk.choices[0].delta.content or "" for chunk in chat(client, "hello", stream=True) if chunk.choices
        )
        assert text

    def test_an_error_after_the_comments_is_an_error_for_the_sdk(
        self, through_proxy: tuple[SimServer, openai.OpenAI]
    ) -> None:
        engine, client = through_proxy
        engine.change_faults(first_byte_delay_s=4.0, status=503, status_body={"error": {"message": "no room"}})
        with pytest.raises(openai.APIError, match="no engine takes more requests"):
            list(chat(client, "hello", stream=True))


class TestOneDeadEngineDoesNotFreezeTheRest:
    """Three engines of 50 ms, 20 clients; one is stopped (the kernel still accepts), then killed, then back."""

    def test_nobody_sees_an_error_and_the_healthy_ones_stay_as_fast(self, tmp_path: Path) -> None:
        with contextlib.ExitStack() as stack:
            engines = [stack.enter_context(SimProcess(tmp_path, prefill_tokens_s=0, decode_s=0.0125)) for _ in range(3)]
            router = stack.enter_context(
                RouterThread(tmp_path, [engine.url for engine in engines], first_byte_s=1.5, slow_start_s=1.0)
            )
            client = client_of(router.url)

            def burst(count: int) -> list[float]:
                def ask(number: int) -> float:
                    return float(timed(lambda: chat(client, f"request {number} {random.random()}"))[0])

                return all_at_once(20, [partial(ask, number) for number in range(count)])

            before = percentile(burst(200), 0.95)
            engines[0].signal(19)  # SIGSTOP
            first = burst(100)
            assert max(first) < 6.0
            assert router.engine(engines[0].url)["state"] == "out"
            as_fast_s = max(1.5 * before, before + 0.1)
            wait_until(lambda: percentile(burst(200), 0.95) < as_fast_s, "the healthy ones are as fast as before", 30.0)
            engines[0].kill()
            burst(100)
            engines[0].start()
            start_s = time.monotonic()
            wait_until(lambda: router.engine(engines[0].url)["state"] == "ready", "it is back in traffic", 3.0)
            assert time.monotonic() - start_s < 3.0
            assert router.engine(engines[0].url)["share"] <= 1.0
            burst(60)


class TestAHotPrefixDoesNotPinOneEngine:
    """Eight engines with room for four requests each; a block of the prompt costs time where it is not cached."""

    @pytest.fixture
    def fleet(self, tmp_path: Path) -> Iterator[tuple[list[SimServer], RouterThread]]:
        with contextlib.ExitStack() as stack:
            engines = [stack.enter_context(sim(prefill_tokens_s=16_000, capacity=4, decode_s=0.002)) for _ in range(8)]
            yield engines, stack.enter_context(RouterThread(tmp_path, [engine.url for engine in engines]))

    def load(self, router: RouterThread, prompts: list[str]) -> tuple[int, float]:
        """The most requests that one engine had at any moment, and the share of cached tokens."""
        client, worst, stop = client_of(router.url), [0], threading.Event()

        def watch() -> None:
            while not stop.wait(0.002):
                worst[0] = max(worst[0], *(engine.in_flight for engine in router.app.router.engines))

        watcher = threading.Thread(target=watch)
        watcher.start()
        answers = all_at_once(CLIENTS, [partial(chat, client, prompt) for prompt in prompts])
        stop.set()
        watcher.join()
        cached = sum(answer.usage.prompt_tokens_details.cached_tokens for answer in answers)
        return worst[0], cached / sum(answer.usage.prompt_tokens for answer in answers)

    def test_one_prefix_is_spread_and_still_hit(self, fleet: tuple[list[SimServer], RouterThread]) -> None:
        _, router = fleet
        prefix = "shared words of the system prompt " * 230
        most, cached = self.load(router, [f"{prefix} {number}" for number in range(400)])
        assert most <= 6, "ceil(1.25 x 4) + 1"
        assert cached >= 0.85

    def test_many_prefixes_hit_far_more_than_by_load_alone(
        self, fleet: tuple[list[SimServer], RouterThread], tmp_path: Path
    ) -> None:
        _, router = fleet
        chooser = random.Random(3)

        def text(letters: int) -> str:
            return "".join(chooser.choices(string.ascii_lowercase + " ", k=letters))

        beginnings = [text(8000) for _ in range(50)]
        ranks = chooser.choices(range(50), [1 / (rank + 1) for rank in range(50)], k=400)
        prompts = [f"{beginnings[rank]} {n} {text(300)}" for n, rank in enumerate(ranks)]
        _, cached = self.load(router, prompts)
        folder = tmp_path / "by-load"
        folder.mkdir()
        with contextlib.ExitStack() as stack:
            others = [stack.enter_context(sim(prefill_tokens_s=16_000, capacity=4, decode_s=0.002)) for _ in range(8)]
            by_load = stack.enter_context(RouterThread(folder, [e.url for e in others], policy="least-load"))
            _, cached_by_load = self.load(by_load, prompts)
        # With one copy of each beginning, the first of a group computes all of it and the others their ends: 0.85.
        possible = (len(ranks) - len(set(ranks))) / len(ranks) * 8000 / 8300
        assert cached >= possible - 0.03
        assert cached >= cached_by_load + 0.25

    def test_an_engine_that_others_load_gets_less_than_its_share(
        self, fleet: tuple[list[SimServer], RouterThread]
    ) -> None:
        engines, router = fleet
        direct = client_of(engines[0].url)
        stop = threading.Event()

        def keep_busy() -> None:
            while not stop.is_set():
                chat(direct, f"{random.random()} " + "heavy " * 4000)

        workers = [threading.Thread(target=keep_busy) for _ in range(4)]
        for worker in workers:
            worker.start()
        try:
            self.others_get_more(engines, router)
        finally:
            stop.set()
            for worker in workers:
                worker.join()

    def others_get_more(self, engines: list[SimServer], router: RouterThread) -> None:
        before = engines[0].seen.requests["/v1/chat/completions"]
        others_before = [engine.seen.requests["/v1/chat/completions"] for engine in engines[1:]]
        client = client_of(router.url)
        all_at_once(16, [partial(chat, client, f"{n} {random.random()} " + "word " * 200) for n in range(240)])
        through_router = sum(e.seen.requests["/v1/chat/completions"] for e in engines[1:]) - sum(others_before)
        assert engines[0].seen.requests["/v1/chat/completions"] > before
        assert 240 - through_router < 240 / 8, "what did not go to the others went to the loaded one"

"""The HTTP client, against a simulated engine and against servers that misbehave."""

import contextlib
import json
import math
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kveik.engine.client import CompletionRequest, EngineClient, EngineStatusError, ServedModel, warm_up
from kveik.errors import EngineError
from kveik.simulate.behaviour import Behaviour
from kveik.simulate.engine import SimulatedEngine
from tests.pages import served_pages

PROMPT = tuple(range(100, 150))


@contextmanager
def server_that_sends(raw: bytes, *, then_hangs: bool = False) -> Iterator[str]:
    """A server that answers the first request with these bytes."""
    done = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(65536)
                connection.sendall(raw)
                if then_hangs:
                    done.wait(10)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        done.set()
        thread.join(5)


def stream(*events: str) -> bytes:
    return b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n" + "".join(f"data: {event}\n\n" for event in events).encode()


@pytest.fixture
def engine() -> Iterator[SimulatedEngine]:
    with SimulatedEngine() as running:
        yield running


def test_a_completion_has_ids_logprobs_times_and_cached_tokens(engine: SimulatedEngine) -> None:
    client = EngineClient(engine.url)
    answer = client.complete(CompletionRequest(PROMPT, 5, top_logprobs=20), "simulated")
    assert len(answer.token_ids) == len(answer.logprobs) == len(answer.top_logprobs) == 5
    for token, value, candidates in zip(answer.token_ids, answer.logprobs, answer.top_logprobs, strict=True):
        assert candidates[token] == value
        assert len(candidates) == 20
    assert answer.prompt_tokens == 50
    assert answer.cached_tokens == 0
    assert 0 < answer.ttft_s <= answer.total_s


def test_the_same_prompt_is_a_hit_and_another_salt_is_not(engine: SimulatedEngine) -> None:
    client = EngineClient(engine.url)
    ask = [CompletionRequest(PROMPT, 1, cache_salt=salt) for salt in ("a", "a", "b")]
    assert [client.complete(request, "simulated").cached_tokens for request in ask] == [0, 48, 0]


def test_requests_are_greedy_and_never_stop_early(engine: SimulatedEngine) -> None:
    EngineClient(engine.url).complete(CompletionRequest(PROMPT, 2), "simulated")
    body = engine.requests[-1]
    assert body["temperature"] == 0.0
    assert body["ignore_eos"] is True
    assert "logprobs" not in body
    assert "cache_salt" not in body


def test_an_engine_that_hides_cached_tokens_gives_minus_one(engine: SimulatedEngine) -> None:
    engine.behaviour.reports_cached_tokens = False
    assert EngineClient(engine.url).complete(CompletionRequest(PROMPT, 1), "simulated").cached_tokens == -1


def test_the_model_and_its_limit_are_read(engine: SimulatedEngine) -> None:
    assert EngineClient(engine.url).model() == ServedModel("simulated", 2048, simulated=True)


def test_the_servers_version_is_read_and_one_that_tells_none_has_none(engine: SimulatedEngine) -> None:
    assert EngineClient(engine.url).version().startswith("kveik-sim-")
    with served_pages({"/health": (200, "")}) as url:
        assert EngineClient(url).version() == ""


def test_an_address_may_end_with_v1_or_a_slash_or_lack_the_scheme(engine: SimulatedEngine) -> None:
    for address in (f"{engine.url}/v1", f"{engine.url}/", engine.url.removeprefix("http://")):
        client = EngineClient(address)
        assert client.url == engine.url
        assert client.health()


@pytest.mark.parametrize(
    "address",
    [
        "ftp://somewhere",
        "http://",
        "file:///etc/passwd",
        "http://localhost:80x",
        "http://a b:1",
        "http://[::1",
        "h:99999",
    ],
)
def test_an_address_that_is_none_is_refused(address: str) -> None:
    with pytest.raises(EngineError, match="no address of an engine"):
        EngineClient(address)


def test_a_refused_request_keeps_status_and_text(engine: SimulatedEngine) -> None:
    with pytest.raises(EngineStatusError, match="maximum context length") as caught:
        EngineClient(engine.url).complete(CompletionRequest((1,) * 3000, 1), "simulated")
    assert caught.value.status == 400


def test_a_stream_that_is_cut_is_an_error_and_no_short_answer(engine: SimulatedEngine) -> None:
    engine.behaviour.breaks_stream_after = 3
    with pytest.raises(EngineError, match="ended before"):
        EngineClient(engine.url).complete(CompletionRequest(PROMPT, 8), "simulated")


def test_an_error_inside_the_stream_is_raised() -> None:
    with (
        server_that_sends(stream('{"error": {"message": "kv load failed"}}', "[DONE]")) as url,
        pytest.raises(EngineError, match="kv load failed"),
    ):
        EngineClient(url).complete(CompletionRequest(PROMPT, 1), "m")


@pytest.mark.parametrize(
    ("events", "complaint"),
    [
        (("{", "[DONE]"), "no JSON"),
        (("[DONE]",), "no token ids"),
        (('{"choices": [{"text": "x"}]}', "[DONE]"), "no token ids"),
        (("[1]", "[DONE]"), "event of the stream is .*, expected an object"),
        (
            ('{"choices": [{"token_ids": [1], "logprobs": {"tokens": []}}]}', "[DONE]"),
            "token_logprobs is None, expected",
        ),
        (
            (
                '{"choices": [{"token_ids": [1], "logprobs": {"token_logprobs": [0], "top_logprobs": [{"x": 0}]}}]}',
                "[DONE]",
            ),
            "candidate token is 'x', expected token_id:NUMBER",
        ),
        (('{"choices": {"token_ids": [1]}}', "[DONE]"), "choices is .*, expected an array"),
        (('{"choices": ["x"]}', "[DONE]"), "a choice is 'x', expected an object"),
        (('{"choices": [{"token_ids": "12"}]}', "[DONE]"), "token_ids is '12', expected an array"),
        (('{"choices": [{"token_ids": ["1"]}]}', "[DONE]"), "a token id is '1', expected a whole number"),
        (('{"choices": [{"token_ids": [1], "text": 5}]}', "[DONE]"), "text is 5, expected text"),
        (('{"choices": [{"token_ids": [1], "finish_reason": 5}]}', "[DONE]"), "finish_reason is 5, expected text"),
        (('{"choices": [{"token_ids": [1]}], "usage": 7}', "[DONE]"), "usage is 7, expected an object"),
        (('{"choices": [{"token_ids": [1]}], "usage": {"prompt_tokens": 1.5}}', "[DONE]"), "prompt_tokens is 1.5"),
        (('{"choices": [{"token_ids": [1]}], "usage": {"prompt_tokens_details": [1]}}', "[DONE]"), "details is"),
    ],
)
def test_an_answer_that_makes_no_sense_is_an_error(events: tuple[str, ...], complaint: str) -> None:
    with server_that_sends(stream(*events)) as url, pytest.raises(EngineError, match=complaint):
        EngineClient(url).complete(CompletionRequest(PROMPT, 1), "m")


#: What a position of any answer may hold instead of what belongs there.
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4) | st.just(10**400),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)


def objects(**known: st.SearchStrategy[object]) -> st.SearchStrategy[dict[str, object]]:
    """Objects with some of the known entries, each of which may be anything at all."""
    return st.fixed_dictionaries({}, optional={name: value | ANYTHING for name, value in known.items()})


LOGPROBS = objects(
    token_logprobs=st.lists(ANYTHING, max_size=2),
    top_logprobs=st.lists(st.dictionaries(st.sampled_from(["token_id:1", "token_id:", "1", "token_id:²"]), ANYTHING)),
)
CHOICE = objects(token_ids=st.lists(st.integers(0, 9)), text=st.text(), finish_reason=st.text(), logprobs=LOGPROBS)
EVENT = objects(
    choices=st.lists(CHOICE | ANYTHING, max_size=2),
    usage=objects(prompt_tokens=st.integers(), prompt_tokens_details=objects(cached_tokens=st.integers())),
)
DOCUMENT = objects(
    data=st.lists(objects(id=st.text(), max_model_len=st.integers()), max_size=1),
    tokens=st.lists(ANYTHING, max_size=2),
    vllm_config=st.dictionaries(st.text(), ANYTHING),
)


class ScriptedEngine:
    """A server that answers every request with :attr:`body`, whatever was asked."""

    def __init__(self) -> None:
        self.body = b""
        script = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.rfile.read(int(self.headers.get("Content-Length") or 0))
                self.send_response(200)
                self.end_headers()
                self.wfile.write(script.body)

            do_POST = do_GET  # noqa: N815

            def log_message(self, *args: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)
        self._thread.start()
        self.client = EngineClient(f"http://127.0.0.1:{self._server.server_port}")

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(5)


@pytest.fixture(scope="module")
def scripted() -> Iterator[ScriptedEngine]:
    engine = ScriptedEngine()
    yield engine
    engine.close()


@settings(deadline=None)
@given(document=DOCUMENT | ANYTHING)
def test_any_json_is_a_sound_answer_or_an_engine_error(scripted: ScriptedEngine, document: object) -> None:
    scripted.body = json.dumps(document).encode()
    with contextlib.suppress(EngineError):
        model = scripted.client.model()
        assert isinstance(model.name, str)
        assert model.max_model_tokens >= 0
    with contextlib.suppress(EngineError):
        assert all(type(token) is int and token >= 0 for token in scripted.client.tokenize("text", "m"))
    with contextlib.suppress(EngineError):
        assert isinstance(scripted.client.server_config(), dict)
    with contextlib.suppress(EngineError):
        scripted.client.reset_local_cache(patience_s=0)


@settings(deadline=None, max_examples=100)
@given(events=st.lists(EVENT | ANYTHING, min_size=1, max_size=3))
def test_any_events_are_a_sound_completion_or_an_engine_error(scripted: ScriptedEngine, events: list[object]) -> None:
    scripted.body = (
        b"".join(b"data: " + json.dumps(event).encode() + b"\n\n" for event in [*events]) + b"data: [DONE]\n"
    )
    with contextlib.suppress(EngineError):
        answer = scripted.client.complete(CompletionRequest(PROMPT, 1), "m")
        assert answer.token_ids
        assert all(type(token) is int for token in answer.token_ids)
        assert isinstance(answer.text, str)
        assert isinstance(answer.finish_reason, str)
        assert all(map(math.isfinite, answer.logprobs))
        assert all(math.isfinite(value) for top in answer.top_logprobs for value in top.values())
        assert answer.prompt_tokens >= 0
        assert answer.cached_tokens >= -1


@settings(deadline=None)
@given(raw=st.binary(max_size=30))
def test_any_bytes_are_an_answer_or_an_engine_error(scripted: ScriptedEngine, raw: bytes) -> None:
    scripted.body = raw
    for call in (scripted.client.model, scripted.client.metrics, scripted.client.server_config):
        with contextlib.suppress(EngineError):
            call()


def test_json_nested_without_end_is_an_engine_error(scripted: ScriptedEngine) -> None:
    scripted.body = b"[" * 100_000
    with pytest.raises(EngineError, match="is no JSON"):
        scripted.client.model()
    scripted.body = b"data: " + b"[" * 60_000 + b"\n\ndata: [DONE]\n"
    with pytest.raises(EngineError, match="is no JSON"):
        scripted.client.complete(CompletionRequest(PROMPT, 1), "m")


@pytest.mark.parametrize(
    ("body", "complaint"),
    [
        ("[]", r"the answer of http.*/v1/models is \[\], expected an object"),
        ("{}", "data of .* is None, expected an array"),
        ('{"data": []}', "names no model"),
        ('{"data": [7]}', "a model of .* is 7, expected an object"),
        ('{"data": [{}]}', "id of .* is None, expected text"),
        ('{"data": [{"id": "m", "max_model_len": "2048"}]}', "max_model_len of .* is '2048', expected a whole number"),
        ('{"data": [{"id": "m", "max_model_len": -1}]}', "is -1, expected a whole number, 0 or more"),
    ],
)
def test_a_list_of_models_of_the_wrong_shape_says_what_was_expected(
    scripted: ScriptedEngine, body: str, complaint: str
) -> None:
    scripted.body = body.encode()
    with pytest.raises(EngineError, match=complaint):
        scripted.client.model()


def test_a_model_without_a_limit_has_none(scripted: ScriptedEngine) -> None:
    scripted.body = b'{"data": [{"id": "m", "max_model_len": null}]}'
    assert scripted.client.model() == ServedModel("m", 0)


def test_a_host_name_that_is_none_is_an_engine_error_at_the_first_call() -> None:
    with pytest.raises(EngineError, match=r"http://a\.\.b:1"):
        EngineClient("http://a..b:1").model()


def test_a_silent_engine_is_given_up_after_the_read_timeout() -> None:
    with server_that_sends(b"", then_hangs=True) as url:
        client = EngineClient(url, read_timeout_s=0.1)
        with pytest.raises(EngineError, match=r"no answer within 0\.1 s"):
            client.complete(CompletionRequest(PROMPT, 1), "m")


def test_an_engine_that_falls_silent_in_the_stream_is_given_up_too() -> None:
    first = stream('{"choices": [{"token_ids": [1], "text": "a"}]}')
    with server_that_sends(first, then_hangs=True) as url:
        client = EngineClient(url, read_timeout_s=0.1)
        with pytest.raises(EngineError, match=r"no answer within 0\.1 s"):
            client.complete(CompletionRequest(PROMPT, 3), "m")


def test_no_engine_at_all_is_an_engine_error() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    client = EngineClient(f"http://127.0.0.1:{port}")
    assert not client.health()
    with pytest.raises(EngineError, match="refused"):
        client.model()


def test_something_that_speaks_no_http_is_an_engine_error() -> None:
    with server_that_sends(b"SSH-2.0-OpenSSH\r\n") as url, pytest.raises(EngineError):
        EngineClient(url).model()


def test_resetting_is_repeated_while_blocks_are_held(engine: SimulatedEngine) -> None:
    client = EngineClient(engine.url)
    client.complete(CompletionRequest(PROMPT, 1), "simulated")
    engine.behaviour.refuses_resets = 2
    client.reset_local_cache()
    assert engine.behaviour.refuses_resets == 0
    before = client.metrics()
    client.complete(CompletionRequest(PROMPT, 1), "simulated")
    assert client.metrics().samples != before.samples


def test_resetting_gives_up_after_its_patience(engine: SimulatedEngine) -> None:
    engine.behaviour.refuses_resets = 1000
    with pytest.raises(EngineError, match="blocks are held"):
        EngineClient(engine.url).reset_local_cache(patience_s=0.1)


def test_without_development_mode_reset_and_configuration_are_404() -> None:
    with SimulatedEngine(behaviour=Behaviour(development_mode=False)) as engine:
        client = EngineClient(engine.url)
        for call in (client.reset_local_cache, client.server_config):
            with pytest.raises(EngineStatusError) as caught:
                call()
            assert caught.value.status == 404


def test_a_warm_up_is_one_real_inference(engine: SimulatedEngine) -> None:
    assert warm_up(EngineClient(engine.url), "simulated") > 0
    assert engine.requests[-1]["max_tokens"] == 1


def test_an_api_key_is_sent() -> None:
    seen: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            connection, _ = listener.accept()
            with connection:
                seen.append(connection.recv(65536))
                connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        EngineClient(f"http://127.0.0.1:{listener.getsockname()[1]}", api_key="secret").health()
        thread.join(5)
    assert b"Authorization: Bearer secret" in seen[0]

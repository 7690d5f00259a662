"""Probes: what is asked, how engines are found out to want it, and what becomes of it."""

import json
import math
from collections.abc import Iterator
from typing import Any

import pytest

from kveik.engine.client import EngineStatusError
from kveik.engine.process import free_port
from kveik.simulate.engine import SimulatedEngine
from kveik.watchdog.probe import ANSWER_TOKENS, PROMPT, WAYS, Prober, ProbeResult, read_reply
from kveik.watchdog.verdict import Probed
from tests.raw_engine import Script, raw_engine, whole_answer

#: The smallest block that vLLM's KV cache has on any device.
SMALLEST_BLOCK_TOKENS = 16


@pytest.fixture(scope="module")
def engine() -> Iterator[SimulatedEngine]:
    with SimulatedEngine() as running:
        yield running


def status(code: int, text: str, reason: str = "Whatever") -> Script:
    body = text.encode()
    return Script((b"HTTP/1.1 %d %s\r\ncontent-length: %d\r\n\r\n%s" % (code, reason.encode(), len(body), body),))


def answer(**choice: Any) -> Script:
    return Script((whole_answer(json.dumps({"choices": [{"index": 0, **choice}]}).encode()),))


def probed(script: Script, patience_s: float = 5.0) -> ProbeResult:
    """What becomes of a probe at an engine that answers so."""
    with raw_engine() as raw:
        raw.script = script
        return Prober(f"http://127.0.0.1:{raw.server_address[1]}", patience_s=patience_s).ask()


def test_a_probe_is_a_real_inference_that_leaves_nothing_behind(engine: SimulatedEngine) -> None:
    result = Prober(engine.url, patience_s=5).ask()
    assert result.probed is Probed.RIGHT
    assert result.model == "simulated"
    assert result.reply is not None
    assert len(result.reply.token_ids) == len(result.reply.logprobs) == len(result.reply.top) == ANSWER_TOKENS
    assert all(len(candidates) == 20 for candidates in result.reply.top)
    sent = engine.requests[-1]
    assert sent["prompt"] == list(PROMPT)
    assert sent["temperature"] == 0.0
    assert sent["cache_salt"] == "kveik-watchdog"
    assert len(PROMPT) + ANSWER_TOKENS < SMALLEST_BLOCK_TOKENS
    assert len(engine.server.app.core.cache) == 0


def test_the_same_prober_gets_the_same_answer_again(engine: SimulatedEngine) -> None:
    prober = Prober(engine.url, patience_s=5)
    first, second = prober.ask(), prober.ask()
    assert first.reply == second.reply
    assert second.took_s > 0
    assert "after 0.0" in second.detail


def test_a_plain_probe_asks_for_no_log_probabilities(engine: SimulatedEngine) -> None:
    prober = Prober(engine.url, patience_s=5)
    plain, full = prober.ask(plain=True), prober.ask()
    assert (plain.probed, plain.way) == (Probed.RIGHT, "token ids alone")
    assert plain.reply is not None
    assert full.reply is not None
    assert plain.reply.token_ids == full.reply.token_ids
    assert plain.reply.logprobs == ()
    assert "logprobs" not in engine.requests[-2]
    assert full.way == "token ids, 20 candidates"


def test_a_probe_for_a_rank_says_so(engine: SimulatedEngine) -> None:
    Prober(engine.url, patience_s=5).ask("3")
    seen = [one for one in engine.server.seen.recorded if one.path == "/v1/completions"]
    assert seen[-1].headers["x-data-parallel-rank"] == "3"


class PickyEngine:
    """A raw engine that refuses requests with certain words in them, in turn with what it says then."""

    def __init__(self, *refusals: tuple[str, str]) -> None:
        self.refusals = refusals
        self.sent: list[tuple[str, dict[str, Any]]] = []

    def post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        self.sent.append((path, body))
        for word, text in self.refusals:
            if word in json.dumps(body) or word == path:
                raise EngineStatusError("POST", 400, text)
        return {"choices": [{"text": "ok"}]}


def test_a_lost_connection_a_refusal_and_an_error_are_told_apart() -> None:
    refused = Prober(f"http://127.0.0.1:{free_port()}", patience_s=5).ask()
    assert refused.probed is Probed.REFUSED
    assert probed(Script((b"HTTP/1.1 200 OK\r\ncontent-length: 50\r\n\r\nhalf",), "fin")).probed is Probed.FAILED
    failed = probed(status(500, "EngineCore died"))
    assert failed.probed is Probed.FAILED
    assert "HTTP 500: EngineCore died" in failed.detail
    assert probed(status(503, "overloaded")).probed is Probed.FAILED
    assert probed(status(429, "too many")).probed is Probed.FAILED


def test_an_unknown_host_is_refused() -> None:
    assert Prober("http://no-such-host.invalid:1", patience_s=5).ask().probed is Probed.REFUSED


def test_silence_is_late() -> None:
    late = probed(Script((b"",)), patience_s=0.2)
    assert late.probed is Probed.LATE
    assert late.detail == "no answer within 0.2 s"


@pytest.mark.parametrize("code", [401, 403, 404, 422])
def test_what_the_engine_wants_in_none_of_all_ways_is_the_probes_fault(code: int) -> None:
    unfit = probed(status(code, "no such thing"))
    assert unfit.probed is Probed.UNFIT
    assert f"HTTP {code}: no such thing" in unfit.detail


def test_an_answer_that_is_none_has_failed() -> None:
    assert probed(Script((whole_answer(b"nonsense"),))).probed is Probed.FAILED
    assert probed(Script((whole_answer(b'{"object":"list"}'),))).probed is Probed.FAILED


@pytest.mark.parametrize("code", [400, 500])
def test_numbers_that_json_does_not_know_are_a_wrong_answer(code: int) -> None:
    wrong = probed(status(code, '{"error":{"message":"Out of range float values are not JSON compliant: nan"}}'))
    assert wrong.probed is Probed.WRONG
    assert f"HTTP {code} says so" in wrong.detail


# -- which way an engine wants to be asked ---------------------------------------------------------


def asked(picky: PickyEngine, probes: int = 1, *, plain: bool = False) -> ProbeResult:
    """The result of the last of some probes at such an engine."""
    prober = Prober("http://127.0.0.1:9", patience_s=5)

    class Client:
        post = staticmethod(picky.post)

        @staticmethod
        def model() -> Any:
            return type("Card", (), {"name": "m"})

    prober._client = lambda rank: Client  # type: ignore[assignment, method-assign, return-value]
    return [prober.ask(plain=plain) for _ in range(probes)][-1]


def test_the_lowest_priority_is_asked_for_and_not_again_where_there_are_none() -> None:
    picky = PickyEngine(("priority", "Got priority 1000000 but Priority scheduling is not enabled"))
    assert asked(picky, probes=2).probed is Probed.RIGHT
    assert ["priority" in body for _, body in picky.sent] == [True, False, False]
    assert all("token ids, 20" in way.name for way in WAYS[:1])


class MonotonousEngine(PickyEngine):
    """One that answers the same token again and again, as one whose numbers are NaN."""

    def post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        super().post(path, body)
        logprobs = {"token_logprobs": [None] * 4, "top_logprobs": [{}] * 4} if "logprobs" in body else None
        return {"choices": [{"text": "!!!!", "token_ids": [0] * 4, "logprobs": logprobs}]}


@pytest.mark.parametrize(
    "engine", [MonotonousEngine(), PickyEngine(('"prompt": [', "no token ids here"))], ids=["one token", "refused"]
)
def test_where_a_plain_answer_says_too_little_the_full_question_is_asked(engine: PickyEngine) -> None:
    engine.sent.clear()
    result = asked(engine, plain=True)
    assert "logprobs" not in engine.sent[0][1]
    assert "logprobs" in engine.sent[1][1]
    assert result.way in [way.name for way in WAYS]


def test_fewer_candidates_are_asked_for_where_the_engine_allows_fewer() -> None:
    picky = PickyEngine(('"logprobs": 20', "Requested logprobs of 20, which is greater than max allowed: 5"))
    result = asked(picky, probes=2)
    assert result.way == "token ids, 5 candidates"
    assert [body["logprobs"] for _, body in picky.sent] == [20, 5, 5]


def test_engines_that_take_no_token_ids_are_asked_in_words() -> None:
    picky = PickyEngine(("return_token_ids", "unknown field"))
    result = asked(picky)
    assert result.way == "text"
    assert result.reply is not None
    assert result.reply.text == "ok"
    chatty = PickyEngine(("/v1/completions", "not here"))
    assert asked(chatty).way == "chat"
    assert [path for path, _ in chatty.sent] == ["/v1/completions"] * 3 + ["/v1/chat/completions"]
    assert "priority" not in chatty.sent[-1][1]


def test_a_new_engine_is_found_out_anew() -> None:
    picky = PickyEngine(("return_token_ids", "unknown field"))
    prober = Prober("http://127.0.0.1:9", patience_s=5)
    prober._way, prober._model, prober._priority = 3, "old", False
    prober.forget()
    assert (prober._way, prober._model, prober._priority) == (0, "", True)
    assert picky.sent == []


# -- replies ---------------------------------------------------------------------------------------


def test_a_reply_keeps_what_is_no_number_as_such() -> None:
    logprobs = {"token_logprobs": [-0.5, None], "top_logprobs": [{"token_id:7": -0.5, "x": -1}, None]}
    reply = read_reply({"choices": [{"text": "ab", "token_ids": [7, 8], "logprobs": logprobs}]})
    assert reply.token_ids == (7, 8)
    assert reply.logprobs[0] == -0.5
    assert math.isnan(reply.logprobs[1])
    assert reply.top == ({7: -0.5}, {})


def test_a_chat_and_an_empty_answer_are_read() -> None:
    assert read_reply({"choices": [{"message": {"content": "six"}}]}).text == "six"
    assert read_reply({"choices": [{"message": {"content": None}}]}).text == ""
    assert read_reply({"choices": []}).text == ""

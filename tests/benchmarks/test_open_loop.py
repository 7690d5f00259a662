"""The open-loop client, in front of simulated engines that behave and that do not."""

import pytest

from benchmarks.open_loop import EventReader, Outcome, Played, play
from benchmarks.workloads import Planned, chat
from kveik.config import SimEngineSettings
from kveik.engine.process import free_port
from kveik.simulate.server import SimServer

USAGE = b'data: {"choices":[],"usage":{"prompt_tokens":9,"prompt_tokens_details":{"cached_tokens":4}}}\n\n'


def asked(count: int, every_s: float = 0.02) -> list[Planned]:
    return [Planned(number * every_s, chat([("user", "the same text for all " * 20)], 4)) for number in range(count)]


def test_streams_are_timed_and_their_cached_tokens_counted() -> None:
    settings = SimEngineSettings(port=0, model="mock", prefill_tokens_s=2000.0, decode_s=0.005)
    with SimServer(settings) as engine:
        played = play(engine.port, asked(3, every_s=0.2), patience_s=5.0)
    first, second, third = played.outcomes
    assert first.prompt_tokens / 2000 <= first.first_s < 1.0
    assert second.first_s < first.first_s
    assert first.cached_tokens == 0
    assert second.cached_tokens == third.cached_tokens > 0
    assert (played.shed, played.failed) == (0, 0)
    assert played.cached_share == pytest.approx(2 * second.cached_tokens / (3 * first.prompt_tokens))


def test_a_slow_engine_does_not_slow_the_requests_down() -> None:
    with SimServer(SimEngineSettings(port=0, model="mock", prefill_tokens_s=200.0, capacity=1)) as engine:
        play(engine.port, asked(5), patience_s=0.3)
        assert engine.seen.active_max == 5


def test_refused_requests_are_shed_and_cut_ones_have_failed() -> None:
    with SimServer(SimEngineSettings(port=0, model="mock")) as engine:
        engine.change_faults(status=503, status_body="{}")
        assert play(engine.port, asked(2), patience_s=5.0).shed == 2
        engine.change_faults(reset=True, die_after_chunks=2, die_by="fin")
        cut = play(engine.port, asked(2), patience_s=5.0)
        assert (cut.shed, cut.failed) == (0, 2)


def test_a_stream_that_stalls_is_given_up_after_the_patience() -> None:
    with SimServer(SimEngineSettings(port=0, model="mock")) as engine:
        engine.change_faults(stall_after_chunks=0)
        played = play(engine.port, asked(1), patience_s=0.2)
    assert played.failed == 1
    assert played.first_token_s(0.5) == 0.2


def test_where_nobody_listens_requests_fail() -> None:
    assert play(free_port(), asked(2), patience_s=1.0).failed == 2


def test_events_are_read_however_they_are_cut() -> None:
    opening = b'data: {"choices":[{"delta":{"role":"assistant","content":""}}]}\n\n'
    word = b'data: {"choices":[{"delta":{"content":" word"}}]}\n\n'
    stream = b": comment\n\n" + opening + word + USAGE + b"data: [DONE]\n\n"
    reader = EventReader()
    until_word = stream.index(word) + len(word) - 1
    for at in range(until_word):
        reader.feed(stream[at : at + 1])
    assert not reader.has_token, "the opening has no token, and the word is not whole yet"
    reader.feed(stream[until_word : until_word + 1])
    assert reader.has_token
    assert not reader.done
    reader.feed(stream[until_word + 1 :])
    assert reader.done
    assert (reader.prompt_tokens, reader.cached_tokens) == (9, 4)


def test_percentiles_count_those_without_a_token_as_waiting_to_the_end() -> None:
    played = Played([Outcome(first_s=0.1, status=200, whole=True)] * 9 + [Outcome(status=503)], patience_s=60.0)
    assert played.first_token_s(0.5) == 0.1
    assert played.first_token_s(0.95) == 60.0
    assert (played.shed, played.failed) == (1, 0)

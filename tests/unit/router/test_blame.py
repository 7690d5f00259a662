"""Whose fault it is: the table in the module's docstring, row by row."""

import pytest

from kveik.router.blame import Blame, Evidence, Failure, judge, repeatable, too_long


@pytest.mark.parametrize("status", [400, 401, 403, 404, 405, 409, 413, 415, 422, 501])
def test_a_clients_error_never_counts_against_an_engine_and_goes_nowhere_else(status: int) -> None:
    verdict = judge(Evidence(Failure.STATUS, status, '{"error": "no"}'), repeatable=True)
    assert (verdict.blame, verdict.counts, verdict.elsewhere) == (Blame.CLIENT, False, False)


@pytest.mark.parametrize("status", [400, 413, 500])
@pytest.mark.parametrize(
    "text",
    [
        "This model's maximum context length is 8192 tokens. However, you requested 9000",
        "The decoder prompt (length 9000) is longer than the maximum model length of 8192",
        '{"error": {"code": "context_length_exceeded"}}',
        "Input length 9000 exceeds the model's context",
    ],
)
def test_a_prompt_that_is_too_long_is_the_clients_whatever_the_status(status: int, text: str) -> None:
    verdict = judge(Evidence(Failure.STATUS, status, text), repeatable=True)
    assert (verdict.blame, verdict.counts) == (Blame.CLIENT, False)
    assert verdict.too_long
    assert verdict.elsewhere, "an engine that takes longer prompts may be tried"


def test_an_engine_that_says_it_is_dead_is_out_at_once() -> None:
    verdict = judge(Evidence(Failure.STATUS, 500, "EngineCore encountered an issue. EngineDeadError"), repeatable=True)
    assert (verdict.blame, verdict.counts, verdict.opens, verdict.died) == (Blame.ENGINE, True, True, True)
    assert judge(Evidence(Failure.STATUS, 503, "EngineDeadError: see above"), repeatable=True).died


@pytest.mark.parametrize(("status", "blame"), [(500, Blame.ENGINE), (502, Blame.ENGINE), (504, Blame.ENGINE)])
def test_an_engines_error_counts_and_another_may_be_tried(status: int, blame: Blame) -> None:
    verdict = judge(Evidence(Failure.STATUS, status, "boom"), repeatable=True)
    assert (verdict.blame, verdict.counts, verdict.opens, verdict.elsewhere) == (blame, True, False, True)


@pytest.mark.parametrize("status", [429, 503])
def test_overload_is_no_failure_and_another_engine_may_have_room(status: int) -> None:
    verdict = judge(Evidence(Failure.STATUS, status, "too many requests"), repeatable=False)
    assert (verdict.blame, verdict.counts, verdict.elsewhere) == (Blame.OVERLOAD, False, True)


@pytest.mark.parametrize("failure", [Failure.REFUSED, Failure.CONNECT_TIMEOUT])
def test_what_was_never_sent_may_always_be_sent_elsewhere(failure: Failure) -> None:
    verdict = judge(Evidence(failure), repeatable=False)
    assert (verdict.blame, verdict.counts, verdict.opens, verdict.elsewhere) == (Blame.NETWORK, True, True, True)


def test_a_kept_connection_that_was_closed_meanwhile_is_nobodys_fault() -> None:
    verdict = judge(Evidence(Failure.STALE), repeatable=False)
    assert (verdict.counts, verdict.same, verdict.elsewhere) == (False, True, True)


@pytest.mark.parametrize("failure", [Failure.CUT, Failure.SILENT, Failure.MALFORMED])
def test_what_may_have_run_is_repeated_only_where_that_does_no_harm(failure: Failure) -> None:
    assert judge(Evidence(failure), repeatable=True).elsewhere
    assert not judge(Evidence(failure), repeatable=False).elsewhere
    assert not judge(Evidence(failure, answered=True), repeatable=True).elsewhere


@pytest.mark.parametrize("failure", [Failure.SILENT, Failure.STALLED])
def test_one_silence_is_enough_to_leave_an_engine_out(failure: Failure) -> None:
    assert judge(Evidence(failure), repeatable=True).opens
    assert not judge(Evidence(Failure.CUT), repeatable=True).opens


@pytest.mark.parametrize(
    ("method", "target", "harmless"),
    [
        (b"POST", b"/v1/chat/completions", True),
        (b"POST", b"/v1/completions?x=1", True),
        (b"POST", b"/v1/responses", True),
        (b"POST", b"/v1/messages", True),
        (b"POST", b"/v1/messages/count_tokens", True),
        (b"POST", b"/tokenize", True),
        (b"GET", b"/whatever", True),
        (b"POST", b"/v1/load_lora_adapter", False),
        (b"POST", b"/reset_prefix_cache", False),
        (b"POST", b"/v1/files", False),
        (b"POST", b"/v1/responses/resp_1/cancel", False),
        (b"DELETE", b"/v1/responses/resp_1", False),
    ],
)
def test_only_requests_that_only_compute_may_run_twice(method: bytes, target: bytes, harmless: bool) -> None:
    assert repeatable(method, target) is harmless


def test_ordinary_texts_do_not_speak_of_length() -> None:
    assert not too_long("max_tokens must be at least 1")
    assert not too_long("temperature must be non-negative")


@pytest.mark.parametrize("again", [True, False])
def test_an_engine_that_is_isolated_has_been_judged_already(again: bool) -> None:
    verdict = judge(Evidence(Failure.ISOLATED), repeatable=again)
    assert (verdict.blame, verdict.counts, verdict.opens, verdict.elsewhere) == (Blame.ENGINE, False, False, again)
    assert not judge(Evidence(Failure.ISOLATED, answered=True), repeatable=True).elsewhere

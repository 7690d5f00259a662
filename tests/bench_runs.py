"""Runs of a benchmark for tests of what is concluded from them."""

from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from kveik.bench import run_findings
from kveik.bench.client_strain import Strain
from kveik.bench.engine_counters import Counted
from kveik.bench.planned import Planned, Workload
from kveik.bench.run_findings import Finding
from kveik.bench.sender import Outcome
from kveik.bench.side_run import Sharing, SideRun, side_run
from kveik.engine.metrics import TokenEvidence

ANSWER_TOKENS = 4


def prompts(count: int, *, shared_tokens: int = 64, own_tokens: int = 64) -> list[tuple[int, ...]]:
    """Prompts with the same start and ends of their own."""
    start = tuple(range(shared_tokens))
    return [start + tuple(range(1000 * n, 1000 * n + own_tokens)) for n in range(1, count + 1)]


def outcome(prompt: Sequence[int], number: int, ttft_s: float, **changed: Any) -> Outcome:
    """The outcome of one request, sent a second after the one before it."""
    sent_s = 100.0 + number
    values: dict[str, Any] = {
        "intended_s": sent_s,
        "sent_s": sent_s,
        "first_s": sent_s + ttft_s,
        "over_s": sent_s + ttft_s + 0.03,
        "prompt_tokens": len(prompt),
        "cached_tokens": 0,
        "token_ids": (1, 2, 3, 4),
    }
    return Outcome(**{**values, **changed})


def run_of(
    ttfts_s: Sequence[float],
    *,
    side: str = "on",
    number: int = 1,
    cached: Sequence[int] = (),
    changed: Sequence[dict[str, Any]] = (),
    counted: Counted | None = None,
    strain: Strain | None = None,
    sharing: Sharing = Sharing.ALL,
    places: int = 0,
    timed: bool = False,
) -> SideRun:
    """A run of prompts that share their first 64 of 128 tokens. ``changed``: fields of each outcome.

    Without ``counted`` one engine counted just what the run did.
    """
    made = prompts(len(ttfts_s))
    workload = Workload("prefix", [Planned(prompt, ANSWER_TOKENS) for prompt in made], timed=timed)
    cached = cached or [0] * len(made)
    changes = changed or [{}] * len(made)
    outcomes = [
        outcome(prompt, n, ttft_s, **{"cached_tokens": hit, **change})
        for n, (prompt, ttft_s, hit, change) in enumerate(zip(made, ttfts_s, cached, changes, strict=True))
    ]
    counted = counted or counted_for(outcomes)
    return side_run(side, number, workload, outcomes, counted, strain or Strain(), sharing, places)


def counted_for(outcomes: Sequence[Outcome], *, prompt: int = 0, answer: int = 0, **changed: Any) -> Counted:
    """What one engine counts for these, and so many tokens more."""
    local = sum(max(0, one.cached_tokens) for one in outcomes)
    total = sum(one.prompt_tokens for one in outcomes)
    values: dict[str, Any] = {
        "engines": ("http://engine",),
        "evidence": TokenEvidence(prompt=total + prompt, computed=total + prompt - local, local=local),
        "answer_tokens": sum(len(one.token_ids) for one in outcomes) + answer,
        "looks": 3,
        "sourced": True,
    }
    return Counted(**{**values, **changed})


def leave_out_a_busy_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """No run is void because this machine did other things as well, which is not what a test is about."""
    said = run_findings._client

    def of_others(run: SideRun) -> Iterator[Finding]:
        return (finding for finding in said(run) if finding.kind != "client_late")

    monkeypatch.setattr(run_findings, "_client", of_others)

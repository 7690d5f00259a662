"""What one run is worth. Pure.

What makes figures mean something else than they say makes a run void; what a reader should know stands beside them as
a note. Nothing is left out silently.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

from kveik.bench.intervals import quantile
from kveik.bench.reuse import STEP_TOKENS
from kveik.bench.side_run import Sharing, SideRun

#: The share of the run's own tokens that others may cause; a watchdog's probes are far below.
FOREIGN_SHARE = 0.02
#: Fewer tokens are none of a load: a probe or two.
_FOREIGN_TOKENS = 64
#: A client later than this share of the median TTFT is told of; one later than all of it measures itself.
_LATE_SHARE = 0.1
_CLOCK_S = 1.0


class Grade(Enum):
    """What a finding does to figures. ``WARM``: they are of a cache that knew the prompts before the run began."""

    NOTE = "note"
    WARM = "warm"
    VOID = "void"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing about a run. ``kind`` is its name for programs; the text is for people."""

    kind: str
    grade: Grade
    text: str

    def document(self) -> dict[str, str]:
        """As a JSON object."""
        return {"kind": self.kind, "grade": self.grade.value, "text": self.text}


def findings(run: SideRun) -> list[Finding]:
    """All that there is to say about one run, the worst first."""
    found = [
        *_answers(run),
        *_warmth(run),
        *_others(run),
        *_engines(run),
        *_client(run),
    ]
    return sorted(found, key=lambda one: (Grade.VOID, Grade.WARM, Grade.NOTE).index(one.grade))


def _answers(run: SideRun) -> Iterator[Finding]:
    failures = [outcome.failure for outcome in run.outcomes if outcome.failure]
    if failures:
        yield Finding(
            "failed",
            Grade.VOID,
            f"{run.name}: {len(failures)} of {len(run.outcomes)} requests failed, so the figures are of the others "
            f"only; the first: {failures[0][:300]}",
        )
    short = [(planned, got) for planned, got in run.answered if len(got.token_ids) != planned.answer_tokens]
    if short:
        planned, got = short[0]
        yield Finding(
            "other_length",
            Grade.VOID,
            f"{run.name}: {len(short)} answers have another length than asked for, for example {len(got.token_ids)} "
            f"tokens instead of {planned.answer_tokens}",
        )
    changed = [(planned, got) for planned, got in run.answered if got.prompt_tokens not in (0, len(planned.prompt))]
    if changed:
        planned, got = changed[0]
        yield Finding(
            "other_prompt",
            Grade.VOID,
            f"{run.name}: the service counts other prompts than were sent, for example {got.prompt_tokens} tokens "
            f"instead of {len(planned.prompt)}: something on the way changes them",
        )


def _warmth(run: SideRun) -> Iterator[Finding]:
    if run.cached_tokens < 0:
        yield Finding(
            "cache_unseen",
            Grade.NOTE,
            f"{run.name}: neither answers nor counters say how many tokens came from a cache, so nobody checked that "
            "the run was cold at its start (vLLM: --enable-prompt-tokens-details, or give the engines' addresses)",
        )
        return
    over = _tokens_over(run)
    if over and run.sharing is Sharing.NONE:
        yield Finding(
            "salt_ignored",
            Grade.VOID,
            f"{run.name}: {over} tokens came from a cache although each request had a salt of its own: the service "
            "does not separate caches by cache_salt, so this side was not without cache",
        )
    elif over:
        yield Finding(
            "warm",
            Grade.WARM,
            f"{run.name}: {over} of {run.prompt_tokens} prompt tokens came from a cache that knew them before the "
            "run: it measured a warm cache",
        )


def _tokens_over(run: SideRun) -> int:
    """Tokens from a cache beyond what the run itself can have put there."""
    singles = [
        outcome.cached_tokens - reusable.possible
        for outcome, reusable in zip(run.outcomes, run.reusable, strict=True)
        if not outcome.failure and outcome.cached_tokens >= 0
    ]
    by_single = sum(tokens for tokens in singles if tokens >= STEP_TOKENS)
    together = run.cached_tokens - run.reusable_tokens
    # A step may be known in part, of each prompt.
    return max(by_single, together if together >= STEP_TOKENS * max(1, len(run.answered)) else 0)


def _others(run: SideRun) -> Iterator[Finding]:
    counted = run.counted
    if counted.busy_before:
        yield Finding(
            "busy_before",
            Grade.VOID,
            f"{run.name}: the engines had {counted.busy_before} requests of others when the run began",
        )
    if not counted.engines or counted.restarts or any(outcome.failure for outcome in run.outcomes):
        return  # then the engines' counts cannot be compared with the run's own
    for what, theirs, own in (
        ("prompt", counted.evidence.prompt, run.prompt_tokens),
        ("answer", counted.answer_tokens, run.answer_tokens),
    ):
        foreign = theirs - own
        if foreign > _FOREIGN_TOKENS and foreign > FOREIGN_SHARE * own:
            yield Finding(
                "foreign_traffic",
                Grade.VOID,
                f"{run.name}: the engines counted {foreign} {what} tokens of others meanwhile, beside {own} of its own",
            )
        elif foreign < -_FOREIGN_TOKENS and -foreign > FOREIGN_SHARE * own:
            yield Finding(
                "engines_unseen",
                Grade.VOID,
                f"{run.name}: the engines that were watched counted {theirs} {what} tokens, and this run had {own}: "
                "others answered as well, of which nothing is known",
            )


def _engines(run: SideRun) -> Iterator[Finding]:
    counted = run.counted
    for why in counted.restarts:
        yield Finding("restarted", Grade.VOID, f"{run.name}: an engine is not the same as before: {why}")
    if not counted.engines:
        yield Finding(
            "engines_unwatched",
            Grade.NOTE,
            f"{run.name}: no engine's counters were found, so traffic of others and restarts would go unnoticed",
        )
    if counted.unanswered:
        yield Finding(
            "silent",
            Grade.NOTE,
            f"{run.name}: {counted.unanswered} of {counted.looks} looks at the engines' counters got no answer",
        )
    told, evidence = run.cached_tokens, counted.evidence
    if counted.sourced and not counted.restarts and told >= 0:
        apart = abs(told - evidence.local - evidence.external)
        if apart > _FOREIGN_TOKENS and apart > FOREIGN_SHARE * max(1, run.prompt_tokens):
            yield Finding(
                "counts_differ",
                Grade.NOTE,
                f"{run.name}: answers say that {told} tokens came from a cache, the engines' counters say "
                f"{evidence.local} local and {evidence.external} external",
            )


def _client(run: SideRun) -> Iterator[Finding]:
    middle_s = quantile(run.ttfts_s, 0.5) if run.ttfts_s else 0.0
    late_s = run.strain.late_s
    if run.workload.timed and not run.places:
        late_s = max(late_s, quantile([outcome.late_s for outcome in run.outcomes], 0.9))
    if run.ttfts_s and late_s > _LATE_SHARE * middle_s:
        yield Finding(
            "client_late",
            Grade.VOID if late_s > middle_s else Grade.NOTE,
            f"{run.name}: this client was up to {late_s:.3f} s late (nine in ten times), beside a median TTFT of "
            f"{middle_s:.3f} s: its machine is too busy, and what it did late is in the figures",
        )
    if run.workload.timed and run.places:
        queued_s = max(outcome.late_s for outcome in run.outcomes)
        if queued_s > max(late_s, _LATE_SHARE * middle_s):
            yield Finding(
                "queued_here",
                Grade.NOTE,
                f"{run.name}: requests waited up to {queued_s:.2f} s for one of {run.places} places after they were "
                "due; that is in their TTFT",
            )
    if abs(run.strain.clock_moved_s) > _CLOCK_S:
        yield Finding(
            "clock_moved",
            Grade.NOTE,
            f"{run.name}: the wall clock moved by {run.strain.clock_moved_s:+.1f} s against the one that measured",
        )

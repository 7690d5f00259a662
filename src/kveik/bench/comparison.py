"""All runs of a benchmark together: the figures of each side, what one gains, and what the whole is worth. Pure."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from kveik.bench.answers import Recheck, differences
from kveik.bench.intervals import Estimate, estimate, mean, mean_ratio, quantile
from kveik.bench.run_findings import Finding, Grade, findings
from kveik.bench.side_run import SideRun

ON, OFF = "on", "off"
#: Medians of rounds that are further apart than this are told of.
_STEADY = 1.5
#: A p99 of fewer values is little more than the slowest one.
_TAIL_COUNT = 100


@dataclass(frozen=True, slots=True)
class SideFigures:
    """The figures of one side over all its rounds. Times in seconds, of single requests; rates are means over rounds.

    ``first_ttft_s`` and ``repeat_ttft_s``: medians of the prompts that could take nothing from earlier ones, and of the
    others; None where there are none. ``cached_tokens`` is -1 where nobody says.
    """

    side: str
    rounds: int
    requests: int
    ttft_s: Estimate
    ttft_p90_s: Estimate
    ttft_p99_s: Estimate
    sent_ttft_s: Estimate
    first_ttft_s: Estimate | None
    repeat_ttft_s: Estimate | None
    token_s: Estimate
    total_s: Estimate
    requests_per_s: Estimate
    answer_tokens_per_s: Estimate
    tokens_per_s: Estimate
    prompt_tokens: int
    answer_tokens: int
    cached_tokens: int
    reusable_tokens: int
    computed_tokens: int
    local_tokens: int
    external_tokens: int

    @property
    def recomputed_tokens(self) -> int:
        """Prompt tokens that were computed although the run had sent them before; -1 where nobody says."""
        return -1 if self.cached_tokens < 0 else max(0, self.reusable_tokens - self.cached_tokens)


@dataclass(frozen=True, slots=True)
class Comparison:
    """Everything that was measured and what follows. ``gains``: off over on for times, on over off for rates."""

    runs: Sequence[SideRun]
    sides: Sequence[SideFigures] = field(default_factory=tuple)
    gains: dict[str, Estimate] = field(default_factory=dict)
    findings: Sequence[Finding] = field(default_factory=tuple)

    @property
    def grade(self) -> Grade:
        """The worst of all findings; a note where there are none that count."""
        grades = {finding.grade for finding in self.findings}
        return next(grade for grade in (Grade.VOID, Grade.WARM, Grade.NOTE) if grade in grades or grade is Grade.NOTE)

    @property
    def verdict(self) -> str:
        """``measured``, ``warm`` or ``void``."""
        return "measured" if self.grade is Grade.NOTE else self.grade.value


def compare(runs: Sequence[SideRun], rechecks: Sequence[Recheck] = (), beside: Sequence[Finding] = ()) -> Comparison:
    """The whole of some runs, of differing answers that were looked at again, and of what was found ``beside`` them.

    A side of which no request was answered has no figures.
    """
    by_side: dict[str, list[SideRun]] = {}
    for run in runs:
        by_side.setdefault(run.side, []).append(run)
    answered = {side: several for side, several in by_side.items() if any(run.answered for run in several)}
    return Comparison(
        runs,
        [_figures(side, several) for side, several in answered.items()],
        _gains(answered) if {ON, OFF} <= answered.keys() else {},
        [
            *beside,
            *(finding for run in runs for finding in findings(run)),
            *_steadiness(answered),
            *_sameness(by_side, rechecks),
        ],
    )


def _figures(side: str, runs: Sequence[SideRun]) -> SideFigures:
    pairs = [pair for run in runs for pair in run.answered]
    whole = [run for run in runs if run.answered]
    ttfts_s = [outcome.ttft_s for _, outcome in pairs]
    by_reuse: dict[bool, list[float]] = {False: [], True: []}
    for run in runs:
        for outcome, reusable in zip(run.outcomes, run.reusable, strict=True):
            if not outcome.failure:
                by_reuse[reusable.earlier > 0].append(outcome.ttft_s)
    cached = [run.cached_tokens for run in whole]
    return SideFigures(
        side=side,
        rounds=len(runs),
        requests=len(pairs),
        ttft_s=estimate(ttfts_s, 0.5),
        ttft_p90_s=estimate(ttfts_s, 0.9),
        ttft_p99_s=estimate(ttfts_s, 0.99),
        sent_ttft_s=estimate([outcome.sent_ttft_s for _, outcome in pairs], 0.5),
        first_ttft_s=estimate(by_reuse[False], 0.5) if by_reuse[False] else None,
        repeat_ttft_s=estimate(by_reuse[True], 0.5) if by_reuse[True] else None,
        token_s=estimate([outcome.token_s for _, outcome in pairs], 0.5),
        total_s=estimate([outcome.over_s - outcome.intended_s for _, outcome in pairs], 0.5),
        requests_per_s=mean([len(run.answered) / run.seconds for run in whole]),
        answer_tokens_per_s=mean([run.answer_tokens / run.seconds for run in whole]),
        tokens_per_s=mean([(run.prompt_tokens + run.answer_tokens) / run.seconds for run in whole]),
        prompt_tokens=sum(run.prompt_tokens for run in runs),
        answer_tokens=sum(run.answer_tokens for run in runs),
        cached_tokens=-1 if min(cached) < 0 else sum(cached),
        reusable_tokens=sum(run.reusable_tokens for run in runs),
        computed_tokens=sum(run.counted.evidence.computed for run in runs),
        local_tokens=sum(run.counted.evidence.local for run in runs),
        external_tokens=sum(run.counted.evidence.external for run in runs),
    )


#: What is compared within each round, and whether more of it is better.
_COMPARED: dict[str, tuple[Callable[[SideRun], float], bool]] = {
    "ttft": (lambda run: quantile(run.ttfts_s, 0.5), False),
    "ttft_p90": (lambda run: quantile(run.ttfts_s, 0.9), False),
    "requests_per_s": (lambda run: len(run.answered) / run.seconds, True),
    "answer_tokens_per_s": (lambda run: run.answer_tokens / run.seconds, True),
}


def _gains(by_side: dict[str, list[SideRun]]) -> dict[str, Estimate]:
    """How many times better the on side is, from the rounds that both sides have."""
    on, off = ({run.round: run for run in by_side[side] if run.answered} for side in (ON, OFF))
    rounds = sorted(on.keys() & off.keys())
    gains = {}
    for name, (figure, more_is_better) in _COMPARED.items():
        pairs = [(figure(on[number]), figure(off[number])) for number in rounds]
        ratios = [mine / other if more_is_better else other / mine for mine, other in pairs if mine > 0 and other > 0]
        if ratios:
            gains[name] = mean_ratio(ratios)
    return gains


def _steadiness(by_side: dict[str, list[SideRun]]) -> Iterator[Finding]:
    for side, runs in by_side.items():
        medians = [quantile(run.ttfts_s, 0.5) for run in runs if run.answered]
        if len(medians) > 1 and max(medians) > _STEADY * min(medians):
            yield Finding(
                "unsteady",
                Grade.NOTE,
                f"{side}: the median TTFT of its rounds goes from {min(medians):.3f} to {max(medians):.3f} s: "
                "something changed meanwhile",
            )
        count = sum(len(run.answered) for run in runs)
        if count < _TAIL_COUNT:
            yield Finding("few", Grade.NOTE, f"{side}: its p99 is of {count} requests, so it is about the slowest one")
    if {ON, OFF} <= by_side.keys() and min(len(runs) for runs in by_side.values()) < 2:
        yield Finding(
            "one_round", Grade.NOTE, "one round says nothing about how sure the comparison is: ask for --rounds"
        )


def _sameness(by_side: dict[str, list[SideRun]], rechecks: Sequence[Recheck]) -> Iterator[Finding]:
    """Whether hits change answers: differences by rounding are told of, others make the comparison void."""
    if not {ON, OFF} <= by_side.keys():
        return
    differing, compared = differences(by_side[ON], by_side[OFF])
    if not differing:
        return
    text = f"{len(differing)} of {compared} answers of the on side differ from those of the off side"
    wrong = [one for one in rechecks if one.is_wrong]
    if wrong:
        yield Finding(
            "answers_wrong",
            Grade.VOID,
            f"{text}, and rounding does not explain it: {wrong[0].told}; do not serve from this cache before "
            "`kveik verify` proves it",
        )
    elif rechecks:
        worst = max(rechecks, key=lambda one: one.gap)
        yield Finding("answers_differ", Grade.NOTE, f"{text}; rounding explains it: {worst.told}")
    else:
        yield Finding("answers_differ", Grade.NOTE, f"{text}, and nobody looked why: prove hits with `kveik verify`")

"""From what was observed to what holds: pure."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from kveik.engine.metrics import TokenEvidence
from kveik.errors import VerifyError
from kveik.verify.legs import Batch, Leg, LegRun, Mode, evidence_complaints, most_hit_tokens
from kveik.verify.parity import (
    CEILING,
    Distance,
    ParityRule,
    distance,
    exact,
    float32_rule,
    rounded_rule,
)
from kveik.verify.prompts import Prompt


@dataclass(frozen=True, slots=True)
class AnswerVerdict:
    """One answer: its distance from the reference (None: it is the reference) and from the cold text."""

    prompt: Prompt
    distance: Distance | None
    text_equals_cold: bool
    ttft_s: float
    cached_tokens: int


@dataclass(frozen=True)
class LegVerdict:
    """One leg in one mode: whether it holds, and if not why, in words."""

    leg: Leg
    mode: Mode
    evidence: TokenEvidence
    expected_hits: int
    answers: Sequence[AnswerVerdict]
    complaints: Sequence[str]

    @property
    def holds(self) -> bool:
        """Whether nothing speaks against it."""
        return not self.complaints

    @property
    def largest_distance(self) -> float | None:
        """The largest distance of log probabilities over all answers, None for references."""
        found = [answer.distance.logprob for answer in self.answers if answer.distance is not None]
        return max(found, default=None)

    @property
    def same_ids(self) -> int:
        """How many answers have the reference's token ids."""
        return sum(1 for answer in self.answers if answer.distance is None or answer.distance.same_ids)

    @property
    def median_ttft_s(self) -> float:
        """The median time to first token over all prompts, short and long."""
        return statistics.median(answer.ttft_s for answer in self.answers)


@dataclass(frozen=True)
class Verdict:
    """The whole proof."""

    rules: Mapping[Mode, ParityRule]
    legs: Sequence[LegVerdict]
    skipped: Sequence[Leg] = field(default=())

    @property
    def holds(self) -> bool:
        """Whether every leg holds and at least one leg tested the shared cache."""
        return all(leg.holds for leg in self.legs) and any(leg.leg.external for leg in self.legs)


def judge(
    runs: Sequence[LegRun],
    *,
    dtype: str,
    unit_tokens: int,
    read_back: bool,
    skipped: Sequence[Leg] = (),
) -> Verdict:
    """Judge all legs. ``unit_tokens`` is the hit unit, ``read_back`` whether blocks are compared.

    Raises :class:`~kveik.errors.VerifyError` when the legs that the rule needs as references
    (cold; local in bfloat16 and float16) are missing.
    """
    by_mode = {mode: {run.leg: run for run in runs if run.mode is mode} for mode in Mode}
    rules, legs = {}, []
    for mode, by_leg in by_mode.items():
        if not by_leg:
            continue
        rules[mode] = _rule(by_leg, dtype)
        legs += [_judge_leg(run, by_leg, rules[mode], unit_tokens, read_back) for run in by_leg.values()]
    return Verdict(rules, legs, tuple(skipped))


def _rule(by_leg: Mapping[Leg, LegRun], dtype: str) -> ParityRule:
    if Leg.COLD not in by_leg:
        raise VerifyError("without the cold leg there is nothing to compare with")
    if exact(dtype):
        return float32_rule()
    if Leg.LOCAL not in by_leg:
        raise VerifyError(f"in {dtype or 'an unknown dtype'} the local hit is the reference: leg local is needed")
    cold, local = by_leg[Leg.COLD].answers, by_leg[Leg.LOCAL].answers
    return rounded_rule(distance(cold[name], local[name]) for name in cold)


def _judge_leg(
    run: LegRun, by_leg: Mapping[Leg, LegRun], rule: ParityRule, unit_tokens: int, read_back: bool
) -> LegVerdict:
    complaints: list[str] = []
    expected_total = 0
    for batch in run.batches:
        expected, found = _evidence(run.leg, batch, by_leg, unit_tokens)
        expected_total += sum(expected)
        names = batch.prompts[0].name if len(batch.prompts) == 1 else f"{len(batch.prompts)} at once"
        complaints += [f"{names}: {text}" for text in found]
    answers = _answers(run, by_leg, rule)
    for answer in answers:
        if answer.distance is not None and (text := _leg_rule(rule, run.leg).complaint(answer.distance)):
            complaints.append(f"{answer.prompt.name}: {text}")
    if run.leg is not Leg.COLD and expected_total == 0:
        complaints.append("no prompt was long enough to be a hit: nothing was tested")
    if run.leg.external and read_back and not run.evidence.compared_blocks:
        complaints.append("no loaded block was read back from the engine's memory and compared with its digest")
    return LegVerdict(run.leg, run.mode, run.evidence, expected_total, answers, complaints)


def _evidence(leg: Leg, batch: Batch, by_leg: Mapping[Leg, LegRun], unit_tokens: int) -> tuple[list[int], list[str]]:
    """The hits that the prompts of a batch should have in this leg, and what speaks against them.

    The shared cache may serve a prompt that ends with a unit to its end, where the engine's own
    cache computes the last unit: an engine with ``whole_prompt_hits`` does so with all prompts of
    more than one unit.
    """
    as_local = [_expected_hit(prompt, leg, by_leg, unit_tokens) for prompt in batch.prompts]
    complaints = evidence_complaints(leg, batch, as_local)
    to_the_end = [
        prompt.tokens if hit and hit + unit_tokens == prompt.tokens else hit
        for prompt, hit in zip(batch.prompts, as_local, strict=True)
    ]
    if leg.external and complaints and to_the_end != as_local:
        found = evidence_complaints(leg, batch, to_the_end)
        if len(found) < len(complaints):
            return to_the_end, found
    return as_local, complaints


def _expected_hit(prompt: Prompt, leg: Leg, by_leg: Mapping[Leg, LegRun], unit_tokens: int) -> int:
    """The hit tokens that this prompt should have.

    Hits must have the length that the engine's own cache reaches where the engine reports it.
    Models with states reach less than all whole blocks, but a local leg without any hit is no
    local leg.
    """
    longest = most_hit_tokens(prompt.tokens, unit_tokens)
    if leg is Leg.COLD or Leg.LOCAL not in by_leg:
        return 0 if leg is Leg.COLD else longest
    reported = by_leg[Leg.LOCAL].answers[prompt.name].cached_tokens
    return reported if 0 < reported <= longest else longest


def _leg_rule(rule: ParityRule, leg: Leg) -> ParityRule:
    """Where the local hit is the reference, it is itself only held to the ceiling."""
    if leg is Leg.LOCAL and rule.reference == "local":
        return ParityRule("cold", CEILING, False, "ceiling")
    return rule


def _answers(run: LegRun, by_leg: Mapping[Leg, LegRun], rule: ParityRule) -> list[AnswerVerdict]:
    cold = by_leg[Leg.COLD].answers
    reference = by_leg[Leg(_leg_rule(rule, run.leg).reference)].answers
    prompts = {prompt.name: prompt for batch in run.batches for prompt in batch.prompts}
    return [
        AnswerVerdict(
            prompt=prompts[name],
            distance=None if run.leg is Leg.COLD else distance(reference[name], completion),
            text_equals_cold=completion.token_ids == cold[name].token_ids,
            ttft_s=completion.ttft_s,
            cached_tokens=completion.cached_tokens,
        )
        for name, completion in run.answers.items()
    ]

"""The proof for an engine of a new version, beside a fleet that serves: its cache hits give what cold runs give.

The new engine gets no requests of users yet; the other one does, so its counters prove nothing, and what an answer
says of its own cached tokens is the evidence. Engines of one namespace share blocks, so both ways are tried::

    fleet computes and saves --> the new engine loads it      each is compared with the same engine's own
    the new engine computes and saves --> the fleet loads it  cold answer, or local hit where numbers are rounded

Engines of different namespaces must share nothing. Then the new one is proved alone: its own cache is emptied, by a
request or by one more restart, and it must find its blocks in the shared one. Probes of a watchdog disturb nothing.
"""

import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from kveik.engine.client import (
    MAX_TOP_LOGPROBS,
    Completion,
    CompletionRequest,
    EngineClient,
    EngineStatusError,
)
from kveik.errors import VerifyError
from kveik.verify.parity import CEILING, ParityRule, distance, exact, float32_rule, rounded_rule
from kveik.verify.prompts import LANGUAGES, Prompt, build_prompts
from kveik.verify.proof import Say, Subject
from kveik.verify.settle import wait_saved
from kveik.verify.trial import EngineFacts, TrialOptions, read_facts

ANSWER_TOKENS = 16
#: Whole hit units of the prompts; half a unit follows.
UNITS = (2, 5)
#: Saves take a moment; each try waits longer, with blocks that nobody has seen.
TRIES_S = (0.3, 1.0, 3.0, 8.0)
SAVED_S = 60.0
SHOWN_COMPLAINTS = 4
SEED = 7


@dataclass(frozen=True, slots=True)
class RolledProof:
    """Whether the new engine may serve, and a sentence about it."""

    holds: bool
    told: str


@dataclass(frozen=True, slots=True)
class Answers:
    """What one engine answered to one prompt: cold, from its own cache, and from blocks that the other had saved."""

    cold: Completion
    local: Completion
    shared: Completion


@dataclass(frozen=True, slots=True)
class BothWays:
    """One prompt at both engines."""

    prompt: Prompt
    new: Answers
    other: Answers


def prove_rolled(
    new: Subject, other: Subject | None, restart: Callable[[], None], say: Say, *, tries_s: Sequence[float] = TRIES_S
) -> RolledProof:
    """The whole proof. ``restart`` restarts the new engine and returns when it answers.

    Raises :class:`VerifyError` and :class:`~kveik.errors.EngineError` where it cannot be carried out.
    """
    snapshot = new.client.metrics()
    if not snapshot.has_connector:
        return RolledProof(True, "it has no shared cache, so there are no hits to prove")
    facts = read_facts(new.client, TrialOptions())
    shares = other is not None and other.client.metrics().has_connector
    prompts = _prompts(new, facts)
    if other is None or not shares:
        return _alone(new, restart, prompts, facts, say)
    if other.client.metrics().namespace != snapshot.namespace:
        say(f"it shares no blocks with {other.name}: that is tried, and then it is proved alone")
        found = _crossing(new, other, prompts[0], tries_s)
        return RolledProof(False, found) if found else _alone(new, restart, prompts, facts, say)
    runs = [_both_ways(new, other, prompt, tries_s, say) for prompt in prompts]
    return concluded(complaints(runs, facts.dtype), f"{len(prompts)} prompts hold both ways with {other.name}")


def complaints(runs: Sequence[BothWays], dtype: str) -> list[str]:
    """What speaks against the new engine or against the other one with its blocks, in words. Pure."""
    found = [
        f"{run.prompt.name}: cold answers differ by |Δlogprob| {apart:.3g}, although the engines share blocks"
        for run in runs
        if not (apart := distance(run.other.cold, run.new.cold).logprob) <= CEILING
    ]
    found += one_sided("the new engine, with blocks of the fleet", [(run.prompt, run.new) for run in runs], dtype)
    found += one_sided(
        "the fleet's engine, with blocks of the new one", [(run.prompt, run.other) for run in runs], dtype
    )
    return found


def one_sided(side: str, answers: Sequence[tuple[Prompt, Answers]], dtype: str) -> list[str]:
    """What speaks against what one engine answered. Pure."""
    found = []
    rule = _rule([answer for _, answer in answers], dtype)
    for prompt, answer in answers:
        where = f"{side}: {prompt.name}"
        if answer.cold.cached_tokens:
            found.append(f"{where}: a prompt that is new reports {answer.cold.cached_tokens} hits")
        elif not answer.shared.cached_tokens:
            found.append(f"{where}: no hit, although the blocks are in its namespace")
        else:
            reference = answer.cold if rule.reference == "cold" else answer.local
            if complaint := rule.complaint(distance(reference, answer.shared)):
                found.append(f"{where}: {complaint}")
    return found


def concluded(found: Sequence[str], held: str) -> RolledProof:
    """The complaints in one sentence; ``held`` is what there is to say without any."""
    if not found:
        return RolledProof(True, f"{held}: hits give what cold runs give")
    more = f"; and {len(found) - SHOWN_COMPLAINTS} more" if len(found) > SHOWN_COMPLAINTS else ""
    return RolledProof(False, f"hits do NOT give what cold runs give: {'; '.join(found[:SHOWN_COMPLAINTS])}{more}")


def subject(name: str, url: str, api_key: str = "") -> Subject:
    """A running engine. Raises :class:`~kveik.errors.EngineError`."""
    client = EngineClient(url, api_key=api_key)
    return Subject(name, client, client.model().name)


def _rule(answers: Sequence[Answers], dtype: str) -> ParityRule:
    if exact(dtype):
        return float32_rule()
    return rounded_rule(distance(answer.cold, answer.local) for answer in answers)


def _prompts(new: Subject, facts: EngineFacts) -> list[Prompt]:
    unit = facts.unit_tokens
    limit = (facts.max_model_tokens or 1 << 30) - ANSWER_TOKENS
    lengths = [length for units in UNITS if (length := units * unit + unit // 2 + 1) <= limit]
    if not lengths:
        raise VerifyError(f"the engine takes {limit} tokens, too few for a prompt of {UNITS[0]} blocks of {unit}")
    return build_prompts(new.tokenize, LANGUAGES, lengths, SEED)


def _both_ways(new: Subject, other: Subject, prompt: Prompt, tries_s: Sequence[float], say: Say) -> BothWays:
    say(f"{prompt.name}: {other.name} saves, {new.name} loads, and the other way round")
    theirs, loaded, salt = _handed_over(other, new, prompt, tries_s)
    again = _ask(other, prompt, salt)
    ours, taken, salt = _handed_over(new, other, prompt, tries_s)
    return BothWays(prompt, Answers(ours, _ask(new, prompt, salt), loaded), Answers(theirs, again, taken))


def _handed_over(
    writer: Subject, reader: Subject, prompt: Prompt, tries_s: Sequence[float]
) -> tuple[Completion, Completion, str]:
    """The writer's cold answer, the reader's from its blocks, and their salt; with the last try, hit or not."""
    for pause_s in tries_s:
        salt = _fresh_salt()
        cold = _ask(writer, prompt, salt)
        time.sleep(pause_s)
        shared = _ask(reader, prompt, salt)
        if shared.cached_tokens:
            break
    return cold, shared, salt


def _crossing(new: Subject, other: Subject, prompt: Prompt, tries_s: Sequence[float]) -> str:
    """Whether blocks of one namespace reach the other, in words; empty if not."""
    for writer, reader in ((other, new), (new, other)):
        _, shared, _ = _handed_over(writer, reader, prompt, tries_s[:2])
        if shared.cached_tokens:
            return (
                f"{reader.name} took {shared.cached_tokens} tokens from blocks of {writer.name}, "
                "although their namespaces differ"
            )
    return ""


def _ask(engine: Subject, prompt: Prompt, salt: str) -> Completion:
    request = CompletionRequest(prompt.token_ids, ANSWER_TOKENS, MAX_TOP_LOGPROBS, salt)
    answer = engine.client.complete(request, engine.model)
    if answer.cached_tokens < 0:
        raise VerifyError(f"{engine.name} does not report cached tokens: start it with --enable-prompt-tokens-details")
    return answer


def _alone(
    new: Subject, restart: Callable[[], None], prompts: Sequence[Prompt], facts: EngineFacts, say: Say
) -> RolledProof:
    """Cold, local, and from the shared cache after its own was emptied: by a request, or by one more restart."""
    salt = _fresh_salt()
    before = new.client.metrics()
    say(f"{len(prompts)} prompts cold and from its own cache")
    asked = []
    for prompt in prompts:
        cold = _ask(new, prompt, salt)
        asked.append((prompt, Answers(cold, _ask(new, prompt, salt), cold)))
    wait_saved(new.client, before, sum(prompt.tokens // facts.unit_tokens for prompt in prompts), SAVED_S)
    if _resets(new.client):
        new.client.reset_local_cache()
    else:
        say("one more restart, to empty its own cache")
        restart()
    say("the same from the shared cache")
    answers = [(prompt, replace(answer, shared=_ask(new, prompt, salt))) for prompt, answer in asked]
    found = one_sided("the new engine, from the shared cache", answers, facts.dtype)
    return concluded(found, f"{len(prompts)} prompts hold alone, from the shared cache")


def _fresh_salt() -> str:
    return f"kveik-roll-{secrets.token_hex(8)}"


def _resets(client: EngineClient) -> bool:
    """Whether the engine's own cache can be emptied by a request."""
    try:
        client.server_config()
    except EngineStatusError:
        return False
    return True

"""How much of a prompt can come from a cache that was empty before the run. Pure.

More than that from a cache means that the run was warm: something had sent these prompts before, under the same salt.

Two bounds, since requests overlap. A prompt that waits in the engine may be given what another one computed that was
sent after it, so of a single prompt all counts that was sent before its first token came. But somebody must have
computed each start once: of all prompts together no more can be reused than each shares with those sent before it.
"""

from collections.abc import Sequence
from dataclasses import dataclass

#: Prompts are compared in steps of so many tokens, so what can be reused is known up to one step.
STEP_TOKENS = 16

#: When a request was sent, and when its first token came; None for a request that failed. Seconds, of one clock.
Span = tuple[float, float] | None


@dataclass(frozen=True, slots=True)
class Reusable:
    """Tokens at the start of a prompt that others of its run have too, down to whole steps.

    ``earlier``: those sent before it; ``possible``: those sent before its first token came.
    """

    earlier: int = 0
    possible: int = 0


def reusable(prompts: Sequence[Sequence[int]], spans: Sequence[Span]) -> list[Reusable]:
    """For each prompt. One that failed gives nothing and takes nothing."""
    chains = [_chain(prompt) if span else [] for prompt, span in zip(prompts, spans, strict=True)]
    senders: dict[int, list[tuple[float, int]]] = {}
    for number, (chain, span) in enumerate(zip(chains, spans, strict=True)):
        for key in chain:
            if span is not None:
                senders.setdefault(key, []).append((span[0], number))
    for several in senders.values():
        several.sort()
        del several[2:]  # the first one but the prompt itself is all that is asked for
    return [
        Reusable()
        if span is None
        else Reusable(_steps(chain, senders, number, span[0]), _steps(chain, senders, number, span[1]))
        for number, (chain, span) in enumerate(zip(chains, spans, strict=True))
    ]


def _steps(chain: Sequence[int], senders: dict[int, list[tuple[float, int]]], number: int, before_s: float) -> int:
    """The tokens of the first steps that some other prompt has as well which was sent before that moment.

    Of two sent at the very same moment the one with the smaller number counts as the earlier one.
    """
    steps = 0
    for key in chain:
        if not any(other != number and (sent_s, other) < (before_s, number) for sent_s, other in senders[key]):
            break
        steps += 1
    return steps * STEP_TOKENS


def _chain(prompt: Sequence[int]) -> list[int]:
    """A key for each whole step of a prompt that names all tokens up to its end."""
    keys, parent = [], 0
    for start in range(0, len(prompt) - STEP_TOKENS + 1, STEP_TOKENS):
        parent = hash((parent, *prompt[start : start + STEP_TOKENS]))
        keys.append(parent)
    return keys

"""Time to first token: cold, with the engine's own prefix cache, and from Kveik on another engine.

What: seconds from sending the HTTP request to the first streamed token, one request at a time.
Where: two engines of one model on the same core, one agent, blocks in its arena.
Each round: a new prompt is answered cold by one engine; then the other engine, which never saw it,
answers it from the shared cache and once more from its own, several times in turn. The engines
swap parts each round.
"""

import argparse

from benchmarks.options import Recorder, lengths_option, parser, rig_spec, say
from benchmarks.request import cold, external_hit, local_hit, unique_prompts
from benchmarks.result import Claim, Round
from benchmarks.rig import Rig
from kveik.engine.launch import Engine
from kveik.verify.prompts import Prompt

COLD, LOCAL, EXTERNAL = "cold", "local hit", "external hit"
MOST_OF_LOCAL, LEAST_SPEEDUP, CLAIMED_TOKENS = 1.3, 15.0, 7000


def main() -> None:
    """Measure, print and write down."""
    options = parser(__doc__ or "", rounds=4)
    lengths_option(options)
    options.add_argument("--repeats", type=int, default=3, help="hits measured for each cold run")
    given = options.parse_args()
    recorder = Recorder("ttft", f"TTFT of {given.model.name}, {given.dtype}: cold, local hit, external hit", given)
    with recorder.writing(conditions(given), claims(given.tokens)), Rig(rig_spec(given), say) as rig:
        rig.start_agent()
        engines = [rig.kveik_engine("engine-a"), rig.kveik_engine("engine-b")]
        measure_rounds(given, recorder, engines)


def measure_rounds(given: argparse.Namespace, recorder: Recorder, engines: list[Engine]) -> None:
    """All lengths in each round, so that a busy minute does not hit one length only."""
    prompts = {tokens: unique_prompts(engines[0], tokens, given.seed) for tokens in given.tokens}
    for number in range(given.rounds):
        writer, reader = engines[number % 2], engines[1 - number % 2]
        for tokens in given.tokens:
            prompt = next(prompts[tokens])
            with recorder.round(group_name(tokens), tokens=tokens) as one:
                measure_round(one, writer, reader, prompt, given.repeats)


def measure_round(one: Round, writer: Engine, reader: Engine, prompt: Prompt, repeats: int) -> None:
    """One prompt: cold on ``writer``, then both kinds of hit on ``reader`` in turn. TTFT in seconds."""
    answer = cold(writer, prompt)
    one.add(COLD, answer.ttft_s)
    for _ in range(repeats):
        for label, ask in ((EXTERNAL, external_hit), (LOCAL, local_hit)):
            answer = ask(reader, prompt)
            one.add(label, answer.ttft_s, answer.cached_tokens)


def group_name(tokens: int) -> str:
    """The name of the group for one prompt length."""
    return f"{tokens} tokens"


def claims(lengths: list[int]) -> list[Claim]:
    """What the longest prompt must show."""
    group = group_name(CLAIMED_TOKENS)
    if CLAIMED_TOKENS not in lengths:
        return []
    return [
        Claim(group=group, first=EXTERNAL, second=LOCAL, direction="at most", bound=MOST_OF_LOCAL),
        Claim(group=group, first=COLD, second=EXTERNAL, direction="at least", bound=LEAST_SPEEDUP),
    ]


def conditions(given: argparse.Namespace) -> dict[str, str]:
    """What a reader must know beside the machine."""
    return {
        "measured": "seconds from sending the HTTP request to the first streamed token, one request at a time",
        "model": f"{given.model.name}, {given.dtype}",
        "engines": f"two, both computing on core {given.core}, eager; they take turns",
        "cache": "agent's arena in shared memory, no tier below it; lookup deadline 2 s, so that busy minutes show",
        "rounds": f"{given.rounds} prompts a length, {given.repeats} hits of each kind for a prompt",
    }


if __name__ == "__main__":
    main()

"""External hits: Kveik against LMCache on the same vLLM, the same core and the same prompts.

What: seconds from sending the HTTP request to the first streamed token, one request at a time.
Where: one engine with Kveik's connector and its agent, one with LMCache's multiprocess connector
and its server; both caches hold blocks in shared memory of the same size.
Each round: both engines answer a new prompt cold. Then the engines' own caches are emptied the same
way before each request, and both answer it from their shared cache, in turn; who is first changes
with each round. Both have their default settings.

LMCache's in-process connector is left out: version 0.5.6 has none for CPUs
("No supported cpu connector found", then it serves without a cache).
"""

import argparse

from benchmarks.options import Recorder, lengths_option, parser, rig_spec, say
from benchmarks.request import cold, external_hit, unique_prompts
from benchmarks.result import Claim, Round
from benchmarks.rig import Rig
from benchmarks.ttft import group_name
from kveik.engine.launch import Engine
from kveik.verify.prompts import Prompt

KVEIK, LMCACHE = "Kveik", "LMCache"


def main() -> None:
    """Measure, print and write down."""
    options = parser(__doc__ or "", rounds=4, engine_environment=".venv-lmcache")
    lengths_option(options, (512, 700, 1024, 2048, 3000, 4096, 7000))
    options.add_argument("--repeats", type=int, default=4, help="hits of each side for each prompt")
    given = options.parse_args()
    question = f"TTFT of external hits, {given.model.name}, {given.dtype}: Kveik against LMCache"
    recorder = Recorder("against-lmcache", question, given)
    with recorder.writing(conditions(given), claims(given.tokens)), Rig(rig_spec(given), say) as rig:
        rig.start_agent()
        rig.start_lmcache_server()
        engines = {KVEIK: rig.kveik_engine("kveik-engine"), LMCACHE: rig.lmcache_engine("lmcache-engine")}
        measure_rounds(given, recorder, engines)


def measure_rounds(given: argparse.Namespace, recorder: Recorder, engines: dict[str, Engine]) -> None:
    """All lengths in each round."""
    prompts = {tokens: unique_prompts(engines[KVEIK], tokens, given.seed) for tokens in given.tokens}
    for number in range(given.rounds):
        order = list(engines) if number % 2 == 0 else list(engines)[::-1]
        for tokens in given.tokens:
            prompt = next(prompts[tokens])
            with recorder.round(group_name(tokens), tokens=tokens) as one:
                measure_round(one, {name: engines[name] for name in order}, prompt, given.repeats)


def measure_round(one: Round, engines: dict[str, Engine], prompt: Prompt, repeats: int) -> None:
    """One prompt: cold on every engine, then external hits in turn. TTFT in seconds."""
    for name, engine in engines.items():
        one.add(cold_label(name), cold(engine, prompt).ttft_s)
    for _ in range(repeats):
        for name, engine in engines.items():
            answer = external_hit(engine, prompt)
            one.add(hit_label(name), answer.ttft_s, answer.cached_tokens)


def hit_label(name: str) -> str:
    """The side of external hits."""
    return f"{name} external hit"


def cold_label(name: str) -> str:
    """The side of cold runs."""
    return f"{name} cold"


def claims(lengths: list[int]) -> list[Claim]:
    """Faster at each length."""
    first, second = hit_label(KVEIK), hit_label(LMCACHE)
    return [
        Claim(group=group_name(tokens), first=first, second=second, direction="at most", bound=1.0)
        for tokens in lengths
    ]


def conditions(given: argparse.Namespace) -> dict[str, str]:
    """What a reader must know beside the machine."""
    return {
        "measured": "seconds from sending the HTTP request to the first streamed token, one request at a time",
        "model": f"{given.model.name}, {given.dtype}",
        "engines": f"one for each side, both computing on core {given.core}, eager; they take turns",
        "emptied before each hit": "the engine's own prefix cache, by POST /reset_prefix_cache on both",
        "Kveik": "default settings, arena in shared memory",
        "LMCache": "multiprocess server, transfer mode auto with shared memory, chunks of 256 tokens (default)",
        "rounds": f"{given.rounds} prompts a length, {given.repeats} hits of each side for a prompt",
    }


if __name__ == "__main__":
    main()

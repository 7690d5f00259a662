"""What saving costs: cold TTFT and decode throughput with Kveik's connector and without any.

Where: two engines of one model on the same core, one with the connector and an agent that takes
every block (generated ones too), one without. Every prompt is new, so nothing is ever a hit.
Each round: both engines answer prompts of their own of the same length, one engine at a time; who is
first changes with each round. Both engines are started anew several times: two processes that run the
very same code differ by several percent for as long as they live, by where their memory happens to
lie, and rounds with the same two processes would only repeat that difference.
"""

import argparse
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

from benchmarks.options import Recorder, parser, rig_spec, say
from benchmarks.request import PAUSE_S, ask, cold, unique_prompts
from benchmarks.result import BenchmarkError, Claim
from benchmarks.rig import Rig
from kveik.engine.client import CompletionRequest
from kveik.engine.launch import Engine
from kveik.verify.prompts import Prompt

WITH, WITHOUT = "with connector", "without"
COLD_TOKENS = (1024, 2048)
DECODE_PROMPT_TOKENS, DECODED_TOKENS, STREAMS = 130, 384, 8
LEAST_SHARE = 0.97

Measure = Callable[[Engine, Iterator[Prompt]], float]


def main() -> None:
    """Measure, print and write down."""
    options = parser(__doc__ or "", rounds=2)
    options.add_argument("--starts", type=int, default=5, help="pairs of engines, each measured for that many rounds")
    given = options.parse_args()
    question = f"With Kveik's connector against without, nothing cached: {given.model.name}, {given.dtype}"
    recorder = Recorder("overhead", question, given)
    with recorder.writing(conditions(given), claims()):
        for start in range(given.starts):
            with Rig(rig_spec(given), say) as rig:
                rig.start_agent()
                engines: dict[str, Engine] = {}
                for name in (WITH, WITHOUT) if start % 2 == 0 else (WITHOUT, WITH):
                    engines[name] = rig.kveik_engine("with-connector") if name == WITH else rig.plain_engine("without")
                measure_rounds(given, recorder, engines, start)


def measure_rounds(given: argparse.Namespace, recorder: Recorder, engines: dict[str, Engine], start: int) -> None:
    """All workloads in each round."""
    plain = engines[WITHOUT]
    lengths = (*COLD_TOKENS, DECODE_PROMPT_TOKENS)
    prompts = {tokens: unique_prompts(plain, tokens, given.seed + start) for tokens in lengths}
    for engine in engines.values():  # the first long prompt of a process is always slower
        cold(engine, next(prompts[COLD_TOKENS[-1]]))
    workloads: list[tuple[str, str, Measure, int]] = [
        *((cold_name(tokens), "s", first_token_s, tokens) for tokens in COLD_TOKENS),
        ("decode, 1 stream", "tokens/s", decode, DECODE_PROMPT_TOKENS),
        (f"decode, {STREAMS} streams", "tokens/s", decode_together, DECODE_PROMPT_TOKENS),
    ]
    for number in range(given.rounds):
        order = [WITH, WITHOUT] if number % 2 == 0 else [WITHOUT, WITH]
        for name, unit, measure, tokens in workloads:
            spent_s: dict[str, float] = {}
            with recorder.round(name, unit=unit) as one:
                for label in order:
                    before_s = engines[label].process.processor_s()
                    one.add(label, measure(engines[label], prompts[tokens]))
                    spent_s[label] = engines[label].process.processor_s() - before_s
            with recorder.round(processor_name(name), unit="s") as one:
                for label in order:
                    one.add(label, spent_s[label])


def first_token_s(engine: Engine, prompts: Iterator[Prompt]) -> float:
    """Seconds to the first token of a new prompt."""
    return cold(engine, next(prompts)).ttft_s


def decode(engine: Engine, prompts: Iterator[Prompt]) -> float:
    """Tokens a second after the first one, alone."""
    answer = ask(engine, next(prompts), DECODED_TOKENS)
    return (len(answer.token_ids) - 1) / (answer.total_s - answer.ttft_s)


def decode_together(engine: Engine, prompts: Iterator[Prompt]) -> float:
    """Generated tokens a second of several requests at once, their short prefills included."""
    requests = [CompletionRequest(next(prompts).token_ids, DECODED_TOKENS) for _ in range(STREAMS)]
    time.sleep(PAUSE_S)
    started_s = time.perf_counter()
    with ThreadPoolExecutor(STREAMS) as pool:
        answers = list(pool.map(lambda request: engine.client.complete(request, engine.model_name), requests))
    elapsed_s = time.perf_counter() - started_s
    if any(answer.cached_tokens > 0 for answer in answers):
        raise BenchmarkError("a new prompt was answered from a cache")
    return sum(len(answer.token_ids) for answer in answers) / elapsed_s


def cold_name(tokens: int) -> str:
    """The name of the group for one prompt length."""
    return f"cold TTFT, {tokens} tokens"


def processor_name(name: str) -> str:
    """The name of the group with the processor time of the same requests."""
    return f"{name}: processor time"


def claims() -> list[Claim]:
    """At least 0.97 of the speed without: times are turned round, so that more is better everywhere."""
    decodes = ["decode, 1 stream", f"decode, {STREAMS} streams"]
    return [
        *(
            Claim(group=cold_name(tokens), first=WITHOUT, second=WITH, direction="at least", bound=LEAST_SHARE)
            for tokens in COLD_TOKENS
        ),
        *(Claim(group=name, first=WITH, second=WITHOUT, direction="at least", bound=LEAST_SHARE) for name in decodes),
    ]


def conditions(given: argparse.Namespace) -> dict[str, str]:
    """What a reader must know beside the machine."""
    return {
        "measured": "cold: seconds to the first streamed token; decode: generated tokens a second; "
        "processor time: of all threads of the engine's processes for the same requests, saving included",
        "model": f"{given.model.name}, {given.dtype}",
        "engines": f"one with, one without, both computing on core {given.core}, eager; they take turns",
        "saved": "every full block, of prompts and of generated text, into the agent's arena",
        "decode": f"{DECODED_TOKENS} tokens after a prompt of {DECODE_PROMPT_TOKENS}",
        "rounds": f"{given.rounds} for each of {given.starts} pairs of engines; each side is first in half of them",
    }


if __name__ == "__main__":
    main()

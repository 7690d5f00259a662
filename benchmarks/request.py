"""One measured request at a time: ask, check where its tokens came from, take the time."""

import time
from collections.abc import Iterator
from itertools import count

from benchmarks.result import BenchmarkError
from kveik.engine.client import Completion, CompletionRequest
from kveik.engine.launch import Engine
from kveik.verify.prompts import Prompt, build_prompt

#: The worker of an engine spins for a second after its last step; then it leaves the core to others.
PAUSE_S = 1.3
#: Saves run behind the answer; before a hit is asked for they get this long.
SAVE_S = 1.5
#: Every external hit is whole units of this: LMCache's chunk, two engine blocks of Kveik.
HIT_UNIT_TOKENS = 256


def unique_prompts(engine: Engine, tokens: int, seed: int) -> Iterator[Prompt]:
    """English prompts of exactly that length, none of which was seen before."""
    for number in count():
        prompt_seed = seed * 1_000_000_000 + tokens * 10_000 + number
        yield build_prompt(lambda text: engine.client.tokenize(text, engine.model_name), "en", tokens, prompt_seed)


def ask(engine: Engine, prompt: Prompt, max_tokens: int = 1) -> Completion:
    """The streamed answer to one request, on a machine that rests otherwise."""
    time.sleep(PAUSE_S)
    return engine.client.complete(CompletionRequest(prompt.token_ids, max_tokens), engine.model_name)


def cold(engine: Engine, prompt: Prompt) -> Completion:
    """The answer to a prompt that no cache knows. Raises BenchmarkError for a hit."""
    answer = ask(engine, prompt)
    if answer.cached_tokens > 0:
        raise BenchmarkError(f"{prompt.name} is not cold: {answer.cached_tokens} tokens came from a cache")
    time.sleep(SAVE_S)
    return answer


def local_hit(engine: Engine, prompt: Prompt) -> Completion:
    """The answer with the engine's own prefix cache, which must hold the prompt."""
    return _hit(engine, prompt)


def external_hit(engine: Engine, prompt: Prompt) -> Completion:
    """The answer when the engine's own cache is empty and the shared one is not."""
    engine.client.reset_local_cache()
    return _hit(engine, prompt)


def _hit(engine: Engine, prompt: Prompt) -> Completion:
    answer = ask(engine, prompt)
    expected = (prompt.tokens - 1) // HIT_UNIT_TOKENS * HIT_UNIT_TOKENS
    if answer.cached_tokens < expected:
        raise BenchmarkError(
            f"{engine.spec.name} took {answer.cached_tokens} tokens of {prompt.name} from a cache, expected {expected}"
        )
    return answer

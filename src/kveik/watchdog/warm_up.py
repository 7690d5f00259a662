"""A few real inferences before an engine gets users' requests: in one, two and four at a time.

What is compiled or captured at first use is compiled then. Prompts and answers together are shorter than a block, so
nothing of them stays in any cache. An engine that wants no such request (HTTP 4xx) needs no warm-up by it.
"""

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from kveik.engine.client import CompletionRequest, EngineClient, EngineStatusError
from kveik.errors import EngineError
from kveik.watchdog.probe import PROMPT, SALT

#: Requests at a time, one round after the other.
ROUNDS = (1, 2, 4)
ANSWER_TOKENS = 4


@dataclass(frozen=True, slots=True)
class WarmedUp:
    """How a warm-up went: ``trouble`` is empty if well."""

    took_s: float
    trouble: str = ""


def warm_up(url: str, *, deadline_s: float, api_key: str = "", rounds: Sequence[int] = ROUNDS) -> WarmedUp:
    """Warm an engine up; each answer within ``deadline_s``."""
    started_s = time.monotonic()
    client = EngineClient(url, read_timeout_s=deadline_s, api_key=api_key)
    try:
        model = client.model().name
        with ThreadPoolExecutor(max(rounds), thread_name_prefix="warm-up") as threads:
            for count in rounds:
                calls = [threads.submit(client.complete, _request(number), model) for number in range(count)]
                for call in calls:
                    call.result()
    except EngineStatusError as error:
        refused = 400 <= error.status < 500 and error.status not in (408, 429)
        return WarmedUp(time.monotonic() - started_s, "" if refused else str(error))
    except EngineError as error:
        return WarmedUp(time.monotonic() - started_s, str(error))
    return WarmedUp(time.monotonic() - started_s)


def _request(number: int) -> CompletionRequest:
    return CompletionRequest(PROMPT[number % len(PROMPT) :] or PROMPT, ANSWER_TOKENS, cache_salt=SALT)

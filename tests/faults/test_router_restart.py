"""A router that restarts sends prompts where they were before, though its engines tell it nothing."""

import contextlib
import random
from pathlib import Path

import openai
import pytest

from kveik.config import SimEngineSettings
from kveik.simulate.server import SimServer
from tests.routers import RouterThread

WORDS = ["alpha", "beta", "gamma", "delta", "epsilon", "zeta"]


@pytest.mark.parametrize("given", [{}, {"prefix_save_s": 0.0}], ids=["kept", "not kept"])
def test_prompts_find_their_engines_again_after_a_restart(tmp_path: Path, given: dict[str, float]) -> None:
    dice = random.Random(5)
    prompts = [" ".join(dice.choices(WORDS, k=300)) for _ in range(12)]

    def homes(router: RouterThread) -> list[str]:
        client = openai.OpenAI(base_url=f"{router.url}/v1", api_key="none")
        found = []
        for prompt in prompts:
            client.chat.completions.create(
                model="simulated", messages=[{"role": "user", "content": prompt}], max_tokens=1
            )
            found.append(router.fleet()["last_choices"][0]["engine"])
        return found

    with contextlib.ExitStack() as stack:
        urls = [stack.enter_context(SimServer(SimEngineSettings(port=0))).url for _ in range(3)]
        with RouterThread(tmp_path, urls, exact_index=False, **given) as router:
            before = homes(router)
            assert len(set(before)) == 3
        dice.shuffle(urls)
        dice.shuffle(order := list(range(12)))
        prompts = [prompts[n] for n in order]
        with RouterThread(tmp_path, urls, exact_index=False, **given) as router:
            after = homes(router)
    assert (after == [before[n] for n in order]) is not bool(given)

"""A real vLLM engine in this process, driven by JSON lines: started by ``engine.py`` in the vLLM environment.

Reads one command a line from file descriptor 0 and answers one line on the file descriptor given as
the second argument, since vLLM logs to standard output.
"""

import json
import os
import sys
from typing import Any

os.environ.update(HF_HUB_OFFLINE="1", VLLM_ENABLE_V1_MULTIPROCESSING="0", VLLM_NO_USAGE_STATS="1")

import prometheus_client
from vllm import LLM, SamplingParams


def generate(llm: LLM, command: dict[str, Any]) -> list[dict[str, Any]]:
    """Greedy continuations of token-id prompts, submitted together."""
    prompts = []
    for ids in command["prompts"]:
        prompt: dict[str, Any] = {"prompt_token_ids": ids}
        if command.get("salt"):
            prompt["cache_salt"] = command["salt"]
        prompts.append(prompt)
    params = SamplingParams(temperature=0, max_tokens=command["tokens"], ignore_eos=True, logprobs=0, detokenize=False)
    lora = None
    if command.get("lora"):
        from vllm.lora.request import LoRARequest

        lora = LoRARequest("adapter", 1, command["lora"])
    outputs = llm.generate(prompts, params, use_tqdm=False, lora_request=lora)
    return [
        {
            "request": output.request_id,
            "ids": list(output.outputs[0].token_ids),
            "logprobs": [
                position[token].logprob
                for token, position in zip(output.outputs[0].token_ids, output.outputs[0].logprobs, strict=True)
            ],
            "cached": output.num_cached_tokens,
            "finish": output.outputs[0].finish_reason,
        }
        for output in outputs
    ]


def main() -> None:
    """Build the engine, say ready, obey until ``exit``."""
    options, answers = json.loads(sys.argv[1]), os.fdopen(int(sys.argv[2]), "w")
    llm = LLM(enforce_eager=True, disable_log_stats=False, **options)

    def answer(value: object) -> None:
        print(json.dumps(value), file=answers, flush=True)

    answer("ready")
    for line in sys.stdin:
        command = json.loads(line)
        if command["do"] == "generate":
            answer(generate(llm, command))
        elif command["do"] == "reset":
            answer(llm.reset_prefix_cache())
        elif command["do"] == "metrics":
            answer(prometheus_client.generate_latest().decode())
        elif command["do"] == "exit":
            break
    answers.flush()
    os._exit(0)


if __name__ == "__main__":
    main()

"""What the dictionary has of vLLM stands in the source of the vLLM that Kveik is written for."""

import re
from functools import cache
from pathlib import Path

import pytest
import vllm

from tests.log_samples import DICTIONARY

ROOT = Path(str(vllm.__file__)).parent

#: Entry, file of vLLM, and what its message is made of there.
PHRASES = {
    "vllm-unknown-variable": ("platforms/interface.py", "Unknown vLLM environment variable detected"),
    "vllm-length-over-model": ("config/model.py", "is greater than the derived"),
    "vllm-heads-not-divisible": ("config/model.py", "must be divisible by tensor parallel size"),
    "vllm-unknown-connector": ("distributed/kv_transfer/kv_connector/factory.py", "Unsupported connector type: "),
    "vllm-no-device": ("config/device.py", "Failed to infer device type"),
    "vllm-no-room-for-kv": ("v1/core/kv_cache_utils.py", "No available memory for the cache blocks"),
    "vllm-kv-shorter-than-request": ("v1/core/kv_cache_utils.py", "To serve at least one request with the model"),
    "vllm-device-in-use": ("v1/worker/utils.py", "is less than desired GPU memory utilization"),
    "vllm-ready-timeout": ("v1/engine/core_client.py", "Timed out waiting for engine core processes"),
    "vllm-core-not-started": ("v1/engine/core.py", "EngineCore failed to start"),
    "vllm-engine-dead": ("v1/engine/core.py", "EngineCore encountered a fatal error"),
    "vllm-output-handler": ("v1/engine/async_llm.py", "AsyncLLM output_handler failed"),
    "vllm-worker-exception": ("v1/executor/multiproc_executor.py", "WorkerProc hit an exception"),
    "vllm-worker-gone": ("v1/executor/multiproc_executor.py", "died unexpectedly"),
    "vllm-worker-failed": ("v1/executor/multiproc_executor.py", "Worker failed with error"),
    "vllm-hybrid-manager-off": ("v1/core/kv_cache_utils.py", "Hybrid KV cache manager is disabled"),
    "vllm-worker-silent": (
        "distributed/device_communicators/shm_broadcast.py",
        "No available shared memory broadcast block found",
    ),
    "vllm-load-failure-policy-fail": ("v1/core/sched/scheduler.py", "due to KV load failure"),
    "vllm-load-failure-recovered": ("v1/core/sched/scheduler.py", "Recovered from KV load failure"),
    "vllm-cache-not-reset": ("v1/core/block_pool.py", "Failed to reset prefix cache because some"),
    "vllm-dump": ("logging_utils/dump_input.py", "Dumping input data"),
    "vllm-kv-nearly-full": ("v1/metrics/loggers.py", "KV cache usage: "),
    "vllm-hash-seed-differs": ("v1/kv_offload/tiering/p2p/session/session.py", "Ensure PYTHONHASHSEED"),
}


@cache
def source(file: str) -> str:
    """A file's text with the pieces of string literals that stand one after the other joined."""
    return re.sub(r'"\s*\n\s*f?"', "", (ROOT / file).read_text(encoding="utf8"))


@pytest.mark.parametrize("id_", PHRASES)
def test_the_message_stands_where_the_entry_says(id_: str) -> None:
    file, phrase = PHRASES[id_]
    assert phrase in source(file)
    entry = DICTIONARY.entries[id_]
    assert phrase.split("%")[0].strip() in entry.sample or re.search(entry.pattern, phrase)


def test_files_that_entries_of_vllm_name_are_there() -> None:
    named = {file for entry in DICTIONARY for file in re.findall(r"\bvllm/([\w/]+\.py)", entry.source)}
    assert len(named) > 15
    assert [file for file in sorted(named) if not (ROOT / file).is_file()] == []

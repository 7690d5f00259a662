"""Options that cannot both be meant, or that need another one. Pure.

What vLLM itself would refuse later, after minutes (vLLM 0.32, ``vllm/config``), and what it takes in vain.
"""

import json
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

from kveik.profiles.ascend_keys import unknown_keys
from kveik.profiles.known_options import Known
from kveik.profiles.line_finding import Finding, Given, value, version_key, whole

_JSON = (
    "kv_transfer_config",
    "speculative_config",
    "compilation_config",
    "additional_config",
    "hf_overrides",
    "engram_config",
    "kv_events_config",
    "model_loader_extra_config",
)
_LOOPBACK = ("127.", "localhost", "0.0.0.0", "::1")  # noqa: S104 (refused here)


def contradictions(
    given: Given, environment: Mapping[str, str], known: Known, ascend: str, backends: Mapping[str, Any]
) -> Iterator[Finding]:
    """Everything that contradicts something else in one line."""
    for rule in _RULES:
        yield from rule(given)
    documents = dict(_documents(given))
    for name, read in documents.items():
        if isinstance(read, str):
            yield Finding("error", _flag(name), f"its value is no valid JSON: {read}", "", "vLLM parser")
    transfer = documents.get("kv_transfer_config")
    if isinstance(transfer, dict):
        yield from _transfer(transfer, environment, known.connectors, ascend, backends)
    additional = documents.get("additional_config")
    if isinstance(additional, dict):
        yield from unknown_keys(additional)
    yield from _graphs(given, environment, documents.get("compilation_config"))
    yield from _engram(given, documents.get("engram_config"))


def _documents(given: Given) -> Iterator[tuple[str, Any]]:
    """Values that are JSON: what they say, or, as text, why they are none."""
    for name in _JSON:
        text = value(given, name)
        if not text or "$" in text or not text.lstrip().startswith(("{", "[")):
            continue
        try:
            yield name, json.loads(text)
        except ValueError as error:
            yield name, str(error)


def _twice(given: Given) -> Iterator[Finding]:
    for times in given.values():
        said = [(name, tuple(values)) for name, values in times]
        if len(set(said)) > 1 and not any(len(values) > 1 for _, values in said):
            names = " and ".join(dict.fromkeys(" ".join((name, *values)) for name, values in said))
            yield Finding(
                "error", said[-1][0], f"it is given twice: {names}; the last one holds", said[-1][0], "argparse"
            )


def _batch(given: Given) -> Iterator[Finding]:
    tokens, requests = whole(given, "max_num_batched_tokens"), whole(given, "max_num_seqs")
    if tokens is not None and requests is not None and tokens < requests:
        told = f"{tokens} is less than --max-num-seqs {requests}"
        yield Finding(
            "error",
            "--max-num-batched-tokens",
            told,
            f"--max-num-batched-tokens {requests} or more",
            "vLLM 0.32, vllm/config/scheduler.py",
        )


def _group(given: Given) -> Iterator[Finding]:
    source = "vLLM 0.32, vllm/engine/arg_utils.py"
    size, local = whole(given, "data_parallel_size") or 1, whole(given, "data_parallel_size_local")
    start, headless = whole(given, "data_parallel_start_rank"), "headless" in given
    if local is not None and local > size:
        yield Finding(
            "error",
            "--data-parallel-size-local",
            f"{local} ranks here are more than {size} in all",
            f"--data-parallel-size {local} or more",
            source,
        )
    if start is not None and start >= size:
        yield Finding(
            "error", "--data-parallel-start-rank", f"rank {start} is beyond the last one, {size - 1}", "", source
        )
    if start is not None and not headless:
        told = "without --headless it chooses hybrid load balancing, which remote headless ranks do not go with"
        yield Finding(
            "error", "--data-parallel-start-rank", told, "leave it out on the first node, even if it is 0", source
        )
    if headless and start is None and size > 1:
        yield Finding(
            "error", "--headless", "nothing says which ranks this node has", "--data-parallel-start-rank N", source
        )
    address = value(given, "data_parallel_address")
    if headless and address.startswith(_LOOPBACK):
        yield Finding(
            "error", "--data-parallel-address", f"{address} is this node itself", "the first node's address", source
        )


def _length(given: Given) -> Iterator[Finding]:
    share = value(given, "gpu_memory_utilization")
    try:
        bad = bool(share) and not 0 < float(share) <= 1
    except ValueError:
        bad = "$" not in share
    if bad:
        yield Finding(
            "error",
            "--gpu-memory-utilization",
            f"{share} is no share of the memory",
            "0.9",
            "vLLM 0.32, vllm/config/cache.py",
        )


def _prefix(given: Given) -> Iterator[Finding]:
    off = given.get("enable_prefix_caching", [("", [])])[-1][0].startswith("--no-")
    if off and "kv_transfer_config" in given:
        told = "blocks are not hashed without prefix caching, so that most connectors find nothing"
        yield Finding("note", "--no-enable-prefix-caching", told, "--enable-prefix-caching", "vLLM 0.32, vllm/v1/core")


def _graphs(given: Given, environment: Mapping[str, str], compilation: Any) -> Iterator[Finding]:
    mode = compilation.get("cudagraph_mode") if isinstance(compilation, dict) else None
    if "enforce_eager" in given and mode not in {None, "NONE"}:
        yield Finding(
            "error",
            "--enforce-eager",
            f"it turns graphs off, and --compilation-config asks for {mode}",
            "one of the two",
            "vLLM 0.32, vllm/config/compilation.py",
        )
    if environment.get("ASCEND_LAUNCH_BLOCKING") == "1" and "enforce_eager" not in given:
        yield Finding(
            "error",
            "ASCEND_LAUNCH_BLOCKING",
            "blocking launches are refused in graph mode",
            "unset it, or --enforce-eager for debugging",
            "vllm-ascend, ACL_Graph.md",
        )


def _engram(given: Given, engram: Any) -> Iterator[Finding]:
    shared = isinstance(engram, dict) and engram.get("dp_shared_memory")
    if shared and (whole(given, "data_parallel_size") or 1) < 2:
        yield Finding(
            "error",
            "--engram-config",
            "dp_shared_memory needs several data-parallel ranks",
            "leave it out",
            "vLLM 0.32, vllm/config/engram.py",
        )


def _transfer(
    config: Mapping[str, Any],
    environment: Mapping[str, str],
    connectors: Collection[str],
    ascend: str,
    backends: Mapping[str, Any],
) -> Iterator[Finding]:
    name = str(config.get("kv_connector", ""))
    flag = "--kv-transfer-config"
    if name and name not in connectors and not config.get("kv_connector_module_path"):
        yield Finding(
            "error",
            flag,
            f'no connector is called {name}: vLLM would say "Unsupported connector type"',
            ", ".join(sorted(connectors)),
            "vLLM 0.32, kv_connector/factory.py",
        )
    if name and not config.get("kv_role"):
        yield Finding(
            "error", flag, "it has no kv_role", '"kv_role": "kv_both"', "vLLM 0.32, vllm/config/kv_transfer.py"
        )
    extra = config.get("kv_connector_extra_config")
    if name == "AscendStoreConnector" and isinstance(extra, dict):
        yield from _backend(str(extra.get("backend", "mooncake")), environment, ascend, backends)


def _backend(
    backend: str, environment: Mapping[str, str], ascend: str, backends: Mapping[str, Any]
) -> Iterator[Finding]:
    row = backends.get(backend)
    if row is None:
        yield Finding(
            "error",
            "--kv-transfer-config",
            f"AscendStore has no backend {backend!r}",
            ", ".join(backends),
            "vllm-ascend 0.30, kv_pool.md",
        )
        return
    if backend == "yuanrong" and version_key(ascend) < version_key("0.19.1rc1"):
        told = f"vllm-ascend {ascend} has no backend yuanrong: the engine would end at an assertion"
        yield Finding("error", "--kv-transfer-config", told, "vllm-ascend 0.19.1rc1 or later", "vllm-ascend, PR 6869")
    newer = not row["since"] or version_key(ascend) >= version_key(row["since"])
    if newer and row["needs"] not in environment:
        told = f"backend {backend} reads the file that this variable names, and nothing here sets it"
        yield Finding("error", row["needs"], told, f"export {row['needs']}=FILE", row["source"])


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


_RULES: tuple[Callable[[Given], Iterator[Finding]], ...] = (_twice, _batch, _group, _length, _prefix)

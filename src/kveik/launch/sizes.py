"""Values that fit a machine and a model: how many engines, what each computes on, and how much memory for what. Pure.

Estimates with room to spare, as a beginning: the file that they are written into is for people to change.
"""

from dataclasses import dataclass

from kveik.byte_size import size_text
from kveik.errors import ConfigError
from kveik.launch.machine import Accelerator, Machine, cpu_list
from kveik.launch.model_facts import ModelFacts

_GIB = 1 << 30
_MIB = 1 << 20
#: What a vLLM server takes beside weights and KV cache, on CPU (vLLM 0.32, eager, 135M model: proportional set size of
#: its three processes 2.2 GiB, 0.6 GiB of that weights and KV cache).
ENGINE_BYTES = int(1.6 * _GIB)
#: The same on a device: workspaces, graphs.
DEVICE_BYTES = 3 * _GIB
#: Parts of the memory that stay free, and of what is left after engines that the arena and KV caches get.
_SPARE_SHARE, _ARENA_SHARE, _KV_SHARE = 0.15, 0.4, 0.4
#: vLLM's own share of a device's memory (gpu_memory_utilization).
_DEVICE_SHARE = 0.9
#: A KV cache for so many prompts of full length is enough; what is evicted is found in the arena.
_PROMPTS_OF_FULL_LENGTH = 8
_CONTEXT_STEP_TOKENS = 256
_ENGINES_ON_ONE_NODE = 2


@dataclass(frozen=True, slots=True)
class EngineSizes:
    """What one engine computes on: ``cores`` of vLLM on CPU or ``devices``, in their own notation."""

    name: str
    cores: str = ""
    devices: str = ""


@dataclass(frozen=True, slots=True)
class Sizes:
    """What goes into the file. 0: left to vLLM or the agent. ``why``: a sentence for each value that needs one."""

    engines: tuple[EngineSizes, ...]
    tensor_parallel: int
    dtype: str
    max_model_tokens: int
    kv_cache_bytes: int
    arena_bytes: int
    why: dict[str, str]


def fitting(machine: Machine, model: ModelFacts | None, engines: int = 0) -> Sizes:
    """Values for this machine; ``engines``: how many are wanted, 0 for as many as make sense.

    Raises :class:`ConfigError` where not even one engine fits.
    """
    if machine.device == "cpu":
        return _on_cpu(machine, model, engines)
    return _on_devices(machine, model, engines)


def _on_cpu(machine: Machine, model: ModelFacts | None, wanted: int) -> Sizes:
    usable = int(machine.available_bytes * (1 - _SPARE_SHARE))
    each = ENGINE_BYTES + (model.weights_bytes if model else 0)
    fit = usable // each
    if fit < 1:
        raise ConfigError(
            f"{size_text(usable)} of memory can be used, but one engine needs {size_text(each)} for itself and its "
            "weights"
        )
    count = wanted or min(fit, max(len(machine.numa), min(_ENGINES_ON_ONE_NODE, len(machine.cores))))
    if count > min(fit, len(machine.cores)):
        raise ConfigError(
            f"{count} engines are wanted, but {len(machine.cores)} cores and {size_text(usable)} of memory are enough "
            f"for {min(fit, len(machine.cores))}"
        )
    rest = usable - count * each
    arena = _rounded(min(int(rest * _ARENA_SHARE), int(machine.shared_bytes * (1 - _SPARE_SHARE))))
    kv_most = int(rest * _KV_SHARE) // count
    context, kv = _context(model, kv_most)
    why = {
        "arena_bytes": _arena_why(machine, int(rest * _ARENA_SHARE)),
        "engines": _engines_why(machine, count),
        "kv_cache_bytes": _kv_why(model, kv),
        "max_model_tokens": _context_why(model, context),
    }
    names = [f"engine-{number}" for number in range(1, count + 1)]
    engines = tuple(
        EngineSizes(name, cores=cpu_list(own)) for name, own in zip(names, _shared_out(machine, count), strict=True)
    )
    return Sizes(engines, 1, model.dtype if model else "auto", context, kv, arena, why)


def _on_devices(machine: Machine, model: ModelFacts | None, wanted: int) -> Sizes:
    devices = machine.accelerators
    least = min((device.memory_bytes for device in devices), default=0)
    ranks, told = _tensor_parallel(model, len(devices), least)
    count = len(devices) // ranks
    if wanted > count:
        raise ConfigError(f"{wanted} engines are wanted, but {len(devices)} devices are enough for {count}: {told}")
    count = wanted or count
    usable = int(machine.available_bytes * (1 - _SPARE_SHARE)) - count * ENGINE_BYTES
    arena = _rounded(min(max(0, int(usable * _ARENA_SHARE * 2)), int(machine.shared_bytes * (1 - _SPARE_SHARE))))
    space = int(least * ranks * _DEVICE_SHARE) - DEVICE_BYTES * ranks - (model.weights_bytes if model else 0)
    context, _ = _context(model, space) if least else (model.context_tokens if model else 0, 0)
    why = {
        "arena_bytes": _arena_why(machine, int(usable * _ARENA_SHARE * 2)),
        "engines": told,
        "kv_cache_bytes": "vLLM takes what weights and graphs leave of the devices' memory",
        "max_model_tokens": _context_why(model, context),
    }
    engines = tuple(
        EngineSizes(f"engine-{n + 1}", devices=_indices(devices[n * ranks : (n + 1) * ranks])) for n in range(count)
    )
    return Sizes(engines, ranks, _device_dtype(model, devices), context, 0, arena, why)


def _tensor_parallel(model: ModelFacts | None, devices: int, memory_bytes: int) -> tuple[int, str]:
    """Over how many devices the model is split, and why: the fewest with room for weights and some KV cache."""
    if model is None or not memory_bytes:
        return 1, "one engine for each device: what the model needs is not known"
    ranks = 1
    while ranks <= devices:
        room = int(memory_bytes * ranks * _DEVICE_SHARE) - DEVICE_BYTES * ranks
        if model.weights_bytes * 1.25 <= room:
            many = f"{ranks} devices" if ranks > 1 else "one device"
            weights, each = size_text(model.weights_bytes), size_text(memory_bytes)
            return ranks, f"{weights} of weights and a KV cache fit on {many} of {each}"
        ranks *= 2
    raise ConfigError(
        f"{size_text(model.weights_bytes)} of weights do not fit on {devices} devices of {size_text(memory_bytes)}: "
        "spread the model over several nodes, or take a quantized one"
    )


def _context(model: ModelFacts | None, kv_most: int) -> tuple[int, int]:
    """Longest prompt and answer that the KV cache can hold, and the size of that cache."""
    if model is None:
        return 0, 0
    if not model.kv_bytes_a_token or not model.context_tokens:
        return model.context_tokens, _rounded(kv_most)
    context = model.context_tokens
    enough = model.kv_bytes(context) * _PROMPTS_OF_FULL_LENGTH
    kv = _rounded(min(kv_most, max(enough, 256 * _MIB)))
    if model.kv_bytes(context + _CONTEXT_STEP_TOKENS) > kv:  # a step to spare: vLLM counts whole blocks
        fit = (kv - model.window_bytes) // model.kv_bytes_a_token - _CONTEXT_STEP_TOKENS
        context = fit // _CONTEXT_STEP_TOKENS * _CONTEXT_STEP_TOKENS
        if context <= 0:
            left = size_text(max(0, kv_most))
            raise ConfigError(f"{left} are left for the KV cache, which is too little for a prompt")
    return context, kv


def _shared_out(machine: Machine, count: int) -> list[list[int]]:
    """The cores of each engine: whole NUMA nodes where there is one for each, or else equal runs."""
    if count == len(machine.numa):
        return [list(node) for node in machine.numa]
    ordered = [core for node in machine.numa for core in node]
    ordered += [core for core in machine.cores if core not in set(ordered)]
    length = len(ordered) // count
    return [ordered[number * length : (number + 1) * length] for number in range(count)]


def _engines_why(machine: Machine, count: int) -> str:
    if count == len(machine.numa) > 1:
        return "one for each NUMA node, so that none computes on another node's memory"
    return "one that fails or restarts leaves another" if count > 1 else "more would take cores from each other"


def _arena_why(machine: Machine, wanted: int) -> str:
    if machine.shared_bytes < wanted:
        return f"all that /dev/shm has room for ({size_text(machine.shared_bytes)} free); containers: --shm-size"
    return "in /dev/shm; blocks survive restarts of engines and agent"


def _kv_why(model: ModelFacts | None, kv: int) -> str:
    if model is None or not model.kv_bytes_a_token:
        return "of each engine"
    tokens = max(0, kv - model.window_bytes) // model.kv_bytes_a_token
    return (
        f"of each engine, about {tokens:,} tokens of {model.kv_bytes_a_token:,} bytes; the arena holds what it evicts"
    )


def _context_why(model: ModelFacts | None, context: int) -> str:
    if model is None or not model.context_tokens:
        return "0 is what the model allows"
    if context < model.context_tokens:
        return f"the model allows {model.context_tokens:,}, for which the KV cache has no room"
    return "all that the model allows"


def _device_dtype(model: ModelFacts | None, devices: tuple[Accelerator, ...]) -> str:
    if model is None:
        return "auto"
    return model.dtype if all(device.bfloat16 for device in devices) else "float16"


def _indices(devices: tuple[Accelerator, ...]) -> str:
    return ",".join(str(device.index) for device in devices)


def _rounded(size: int) -> int:
    """Down to a size that reads well; never to nothing."""
    step = 256 * _MIB if size >= _GIB else 32 * _MIB
    return size // step * step or size

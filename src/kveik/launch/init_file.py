"""The commented configuration file that ``kveik init`` writes. Pure: the same values give the same text."""

import json
import shlex
from collections.abc import Iterator
from pathlib import Path

from kveik.launch.machine import Machine
from kveik.launch.model_facts import ModelFacts
from kveik.launch.sizes import EngineSizes, Sizes

_MIB = 1 << 20
_GIB = 1 << 30
_FIRST_PORT = 8001


def init_text(machine: Machine, model_folder: Path | None, model: ModelFacts | None, sizes: Sizes, python: str) -> str:
    """The file for one machine. ``python``: that of the engines, empty for the one that runs Kveik."""
    parts = [
        _head(machine),
        _engine_table(machine, model_folder, model, sizes, python),
        [f"# The engines: {sizes.why['engines']}."],
        *(_launch_table(engine, _FIRST_PORT + number) for number, engine in enumerate(sizes.engines)),
        _rest(sizes),
    ]
    return "\n".join("\n".join(lines) + "\n" for lines in parts)


def _head(machine: Machine) -> Iterator[str]:
    yield "# A fleet for this machine, written by `kveik init`: change what you like, then run `kveik up`."
    yield f"# Found: {machine}."
    yield from (f"# Not found out: {note}." for note in machine.notes)
    yield "# All settings, their units and defaults: `docs/configuration.md`, or `kveik COMMAND --help`."
    yield ""
    yield "[fleet]"
    yield 'name = "kveik"'
    yield "ready_min = 1              # engines that stay in the pool while others are drained or rolled"
    yield "drain_s = 120              # how long running requests may go on at an engine that is stopped"


def _engine_table(
    machine: Machine, folder: Path | None, model: ModelFacts | None, sizes: Sizes, python: str
) -> Iterator[str]:
    yield "# What all engines have in common; a [[launch]] table below may say otherwise for its engine."
    yield "[engine]"
    yield _line("model", _text(str(folder) if folder else ""), "" if folder else "SET ME: the folder of a model")
    yield _line("python", _text(python), "a Python with vLLM and Kveik; empty: the one that runs kveik")
    if model is not None:
        weights = f"{model.weights_bytes / _GIB:.2f} GiB of weights"
        yield f"# {weights}, {model.kv_bytes_a_token:,} bytes of KV cache a token"
    yield _line("dtype", _text(sizes.dtype), "of weights and activations; part of what engines must agree on to share")
    yield _line("max_model_tokens", str(sizes.max_model_tokens), sizes.why.get("max_model_tokens", ""))
    yield _line("kv_cache_bytes", _amount(sizes.kv_cache_bytes), sizes.why.get("kv_cache_bytes", ""))
    if sizes.tensor_parallel > 1:
        arguments = shlex.join(["--tensor-parallel-size", str(sizes.tensor_parallel)])
        yield _line("arguments", _text(arguments), "further arguments for vLLM")
    else:
        yield '# arguments = "--max-num-seqs 64"         # further arguments for vLLM, as in a shell'
    yield "fall_back = true           # start in a simpler mode if compiling or capturing graphs fails"
    if machine.device == "cpu":
        yield '# mode = "eager"           # do not compile: starts faster, answers slower'


def _launch_table(engine: EngineSizes, port: int) -> Iterator[str]:
    yield "[[launch]]"
    yield _line("name", _text(engine.name), "")
    yield _line("port", str(port), "")
    if engine.cores:
        yield _line("cores", _text(engine.cores), "of its own: engines on the same cores slow each other down")
    if engine.devices:
        yield _line("devices", _text(engine.devices), "")


def _rest(sizes: Sizes) -> Iterator[str]:
    yield "# The cache that all engines of this machine share: shared memory, and a folder below it if you like."
    yield "[agent]"
    yield _line("arena_bytes", _amount(sizes.arena_bytes), sizes.why.get("arena_bytes", ""))
    yield '# filesystem = "/var/lib/kveik/cache"      # a second tier that survives reboots; several nodes may share it'
    yield '# filesystem_bytes = "100 GiB"'
    yield ""
    yield "# The one address for clients."
    yield "[router]"
    yield 'host = "127.0.0.1"         # 0.0.0.0 to be reached from outside; then set a token and API keys'
    yield "port = 8100"
    yield "drain_s = 30               # at the end: how long running requests may go on"
    yield '# keys_file = "keys.toml"                  # API keys, made by `kveik key`'
    yield '# admission_token_file = "token"           # who may change the fleet'
    yield '# registry = "etcd://10.0.0.1:2379"        # several nodes: what they share'
    yield ""
    yield "# Asks engines for real answers, tells busy from hung, and restarts the right one once."
    yield "[watchdog]"
    yield "probe_period_s = 5"
    yield "restart = true             # false: only isolate and report"
    yield ""
    yield "# Several nodes: name each of them, give every [[launch]] table its node, set router.registry, and run"
    yield "# `kveik up --node NAME` on each (docs/several-nodes.md)."
    yield "# [[nodes]]"
    yield '# name = "n0"'
    yield '# address = "10.0.0.1"'


def _line(name: str, value: str, comment: str) -> str:
    setting = f"{name} = {value}"
    return f"{setting:<26} # {comment}" if comment else setting


def _text(value: str) -> str:
    """A TOML basic string: its escapes are those of JSON."""
    return json.dumps(value, ensure_ascii=False)


def _amount(size: int) -> str:
    """Bytes as a person reads them, exactly."""
    if not size:
        return "0"
    if size % _GIB == 0:
        return f'"{size // _GIB} GiB"'
    return f'"{size // _MIB} MiB"' if size % _MIB == 0 else str(size)

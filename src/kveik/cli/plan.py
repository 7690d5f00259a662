"""``kveik plan``: what fits on which hardware, and how that was found."""

import argparse
import dataclasses
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from kveik.errors import ConfigError, LineUnreadableError
from kveik.launch.model_facts import read_model
from kveik.profiles import catalog, lengths
from kveik.profiles.capacity import Goal, Place, Subject, capacity, cost, gib, moved, moved_between
from kveik.profiles.figure import MIB, Figure
from kveik.profiles.staging import DEVICE_POOL_BYTES, HOST_POOL_BYTES, LEAST_BYTES, Call, staging
from kveik.profiles.vllm_python import ask_vllm

EPILOG = """\
  kveik plan --model deepseek-v4.1-flash --hardware a3 --context 600000 --requests 16
  kveik plan --config config.json --memory-gib 80 --tensor 4 --kv-dtype fp8 --context 32768 --requests 64
  kveik plan --model-folder /models/m --memory-gib 24
  kveik plan --model deepseek-v4.1-flash --pool-tokens 980000 --pool-tokens-after 6780000
  kveik plan --lengths exponential:10-1000:180 --shared-tokens 304 --block-tokens 16
  kveik plan --staging-mib 8,7,6,5 --staging-least-mib 0
  kveik plan --price 2 --devices 8 --tokens-per-s 1000 --speedup 2.3

Estimates: what an engine really has it says itself, "GPU KV cache size: N tokens".

exit codes:
  0  done, and what was asked for fits
  1  it does not fit
  2  wrong use, or the model does not say enough
  3  the Python given with --python could not be asked
"""

_WIDTH = 160
Section = tuple[str, tuple[Figure, ...]]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = EPILOG
    model = parser.add_argument_group("model")
    model.add_argument("--model", choices=catalog.names("models"), help="one of the presets")
    model.add_argument("--model-folder", type=Path, metavar="DIR", help="with config.json and weights")
    model.add_argument("--config", type=Path, metavar="FILE", help="a config.json alone; weights are estimated")
    model.add_argument("--weights-gib", type=float, default=0.0, metavar="GIB", help="of all weights, if known better")
    model.add_argument("--bits", type=float, default=0.0, help="of a weight (16, or the preset's)")
    model.add_argument("--kv-dtype", default="auto", help="of the KV cache: auto, bfloat16, fp8 and so on (auto)")
    place = parser.add_argument_group("devices")
    place.add_argument("--hardware", choices=catalog.names("hardware"), help="a preset's layout, where there is one")
    place.add_argument("--nodes", type=int, default=1, metavar="N", help="of that hardware (1)")
    place.add_argument("--memory-gib", type=float, default=0.0, metavar="GIB", help="of a device")
    place.add_argument("--utilization", type=float, default=0.0, help="share of it that the engine takes (0.9)")
    place.add_argument("--other-gib", type=float, default=3.0, metavar="GIB", help="graphs, workspaces, tables (3)")
    place.add_argument("--tensor", type=int, default=0, metavar="N", help="devices that split each layer")
    place.add_argument("--pipeline", type=int, default=1, metavar="N", help="devices that split the layers (1)")
    place.add_argument("--data", type=int, default=0, metavar="N", help="ranks that share the requests")
    goal = parser.add_argument_group("goal")
    goal.add_argument("--context", type=int, default=0, metavar="TOKENS", help="prompt and answer of each request")
    goal.add_argument("--requests", type=int, default=1, metavar="N", help="at once (1)")
    table = parser.add_argument_group("a table that leaves device memory")
    table.add_argument("--pool-tokens", type=int, default=0, metavar="N", help="an engine's pool before")
    table.add_argument("--pool-tokens-after", type=int, default=0, metavar="N", help="and after: what left the device")
    table.add_argument("--moved-gib", type=float, default=0.0, metavar="GIB", help="or how much leaves each device")
    mix = parser.add_argument_group("requests of different lengths")
    mix.add_argument("--lengths", metavar="MIX", help="N,N,N, uniform:LOW-HIGH or exponential:LOW-HIGH:MEAN")
    mix.add_argument("--longest", type=int, default=0, metavar="TOKENS", help="that a request may have; default: has")
    mix.add_argument("--shared-tokens", type=int, default=0, metavar="N", help="that all of them begin with")
    mix.add_argument("--block-tokens", type=int, default=16, metavar="N", help="of a block (16; NPUs and CPUs: 128)")
    mix.add_argument("--python", default="", metavar="PATH", help="with vLLM: ask its own block manager, too")
    stage = parser.add_argument_group("openYuanrong's staging memory")
    stage.add_argument("--staging-mib", metavar="N,N,N", help="sizes of a call's objects")
    stage.add_argument("--staging-workers", type=int, default=4, metavar="N", help="DS_*_FFTS_PARALLEL_WORKER_NUM (4)")
    stage.add_argument("--staging-way", choices=tuple(LEAST_BYTES), default="h2d", help="to the device or back (h2d)")
    stage.add_argument("--staging-least-mib", type=float, metavar="N", help="DS_*_FFTS_PARALLEL_MIN_BYTES")
    stage.add_argument(
        "--device-pool-mib", type=float, default=DEVICE_POOL_BYTES / MIB, help="DS_DEVICE_ACL_SIZE (100)"
    )
    stage.add_argument("--host-pool-mib", type=float, default=HOST_POOL_BYTES / MIB, help="DS_HOST_ACL_SIZE (2560)")
    stage.add_argument("--huge", action="store_true", help="both ways use huge_ffts")
    money = parser.add_argument_group("cost")
    money.add_argument("--price", type=float, metavar="N", help="of a device for an hour, in any money")
    money.add_argument("--devices", type=int, default=1, metavar="N", help="(1)")
    money.add_argument("--tokens-per-s", type=float, default=0.0, metavar="N", help="of all of them")
    money.add_argument("--speedup", type=float, default=1.0, metavar="N", help="to compare with (1)")
    parser.add_argument("--json", action="store_true", help="print one JSON document")


def run(args: argparse.Namespace) -> int:
    """Plan and print; the exit code says whether the goal is met."""
    try:
        sections, fits = _sections(args)
    except ConfigError as error:
        print(f"kveik plan: {error}", file=sys.stderr)
        return 2
    except LineUnreadableError as error:
        print(f"kveik plan: {error}", file=sys.stderr)
        return 3
    if args.json:
        print(json.dumps(_document(sections, fits), indent=1, ensure_ascii=False))
    else:
        _print(sections)
    return 1 if fits is False else 0


def _sections(args: argparse.Namespace) -> tuple[list[Section], bool | None]:
    found: list[Section] = []
    fits = None
    subject = _subject(args) if args.model or args.model_folder or args.config else None
    if subject is not None and (args.hardware or args.memory_gib):
        goal = Goal(args.context, args.requests) if args.context else None
        result = capacity(subject, _place(args), goal)
        found.append((subject.name, result.figures))
        fits = result.fits
    if args.pool_tokens:
        found.append(("a table that leaves device memory", _moved(args, subject)))
    if args.lengths:
        found.append(("requests of different lengths", _lengths(args)))
    if args.staging_mib:
        found.append(("staging memory of openYuanrong datasystem", staging(_call(args))))
    if args.price is not None:
        found.append(("cost", cost(args.price, args.devices, args.tokens_per_s, args.speedup)))
    if not found:
        raise ConfigError("nothing to plan: give a model and its devices (--hardware or --memory-gib), or see --help")
    return found, fits


def _subject(args: argparse.Namespace) -> Subject:
    weights = gib(args.weights_gib)
    if args.model:
        on = catalog.hardware(args.hardware).platform if args.hardware else ""
        of = catalog.model(args.model, on)
        drafts = any(name == "--speculative-config" for name, _, _ in of.options)
        layers = int((of.config or {}).get("num_nextn_predict_layers", 0)) if drafts else 0
        return Subject(
            name=of.title,
            config=of.config,
            weights_bytes=weights,
            parameters=of.parameters,
            bits=args.bits or of.bits,
            kv_bytes_a_token=of.kv_bytes_a_token,
            drafts=layers,
            source=of.source,
        )
    if args.model_folder:
        facts = read_model(args.model_folder)
        config = _config(args.model_folder / "config.json")
        return Subject(name=facts.name, config=config, weights_bytes=weights or facts.weights_bytes)
    return Subject(name=str(args.config), config=_config(args.config), weights_bytes=weights, bits=args.bits or 16.0)


def _config(path: Path) -> dict[str, Any]:
    try:
        config = json.loads(path.read_text("utf8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"cannot read {path}: {error}") from error
    if not isinstance(config, dict):
        raise ConfigError(f"{path} is no JSON object")
    return config


def _place(args: argparse.Namespace) -> Place:
    memory, utilization, tensor, data, apart = args.memory_gib, args.utilization, args.tensor, args.data, False
    if args.hardware:
        on = catalog.hardware(args.hardware)
        memory = memory or on.memory_gib
        if not memory:
            raise ConfigError(f"{args.hardware} has no memory of its own: --memory-gib, of what an engine may take")
        if args.model and not tensor:
            of = catalog.model(args.model, on.platform)
            preset = catalog.preset(of, on, args.nodes)
            tensor, utilization = preset.tensor, utilization or preset.utilization
            data, apart = data or preset.local * args.nodes, of.group
    return Place(
        memory_bytes=gib(memory),
        utilization=utilization or 0.9,
        tensor=tensor or 1,
        pipeline=args.pipeline,
        data=data or 1,
        experts_apart=apart,
        other_bytes=gib(args.other_gib),
        kv_dtype=args.kv_dtype,
    )


def _moved(args: argparse.Namespace, subject: Subject | None) -> tuple[Figure, ...]:
    if subject is None:
        raise ConfigError("--pool-tokens needs the model whose tokens they are: --model or --config")
    figures = capacity(dataclasses.replace(subject, weights_bytes=1), Place(memory_bytes=gib(1024))).figures
    token_bytes = next(float(figure.value) for figure in figures if figure.name == "KV a token on a device")
    if args.pool_tokens_after:
        return moved_between(args.pool_tokens, args.pool_tokens_after, token_bytes)
    if args.moved_gib > 0:
        return moved(args.pool_tokens, token_bytes, gib(args.moved_gib))
    raise ConfigError("--pool-tokens needs --moved-gib or --pool-tokens-after")


def _lengths(args: argparse.Namespace) -> tuple[Figure, ...]:
    found = lengths.mix(args.lengths)
    figures = lengths.waste(found, args.block_tokens, args.longest)
    if args.shared_tokens:
        figures += lengths.sharing(found, args.shared_tokens, args.block_tokens)
    return figures + _asked(args, found) if args.python else figures


def _asked(args: argparse.Namespace, found: Sequence[int]) -> tuple[Figure, ...]:
    question = {"lengths": list(found), "shared": args.shared_tokens, "block": args.block_tokens}
    answer = ask_vllm(args.python, "vllm_blocks.py", question)
    told = "counted by vLLM's own block manager"
    return (
        Figure("vLLM's blocks, each for itself", answer["blocks_without_sharing"], "blocks", told, args.python),
        Figure("vLLM's blocks, beginning shared", answer["blocks"], "blocks", told, args.python),
    )


def _call(args: argparse.Namespace) -> Call:
    try:
        sizes = [int(float(part) * MIB) for part in args.staging_mib.split(",")]
    except ValueError as error:
        raise ConfigError(f"--staging-mib is {args.staging_mib!r}, expected numbers with commas") from error
    least = args.staging_least_mib
    return Call(
        sizes=sizes,
        workers=args.staging_workers,
        least_bytes=LEAST_BYTES[args.staging_way] if least is None else int(least * MIB),
        device_pool_bytes=int(args.device_pool_mib * MIB),
        host_pool_bytes=int(args.host_pool_mib * MIB),
        huge=args.huge,
    )


def _document(sections: list[Section], fits: bool | None) -> dict[str, Any]:
    shown = {name: [dataclasses.asdict(figure) for figure in figures] for name, figures in sections}
    return {"fits": fits, "sections": shown}


def _print(sections: list[Section]) -> None:
    console = Console(width=None if sys.stdout.isatty() else _WIDTH)
    for name, figures in sections:
        table = Table(title=name, title_justify="left", box=None, pad_edge=False)
        table.add_column("figure")
        table.add_column("value", justify="right")
        table.add_column("found by")
        for figure in figures:
            filled = f"{figure.formula}: {figure.filled}" if figure.filled else figure.formula
            source = f" ({figure.source})" if figure.source else ""
            table.add_row(figure.name, figure.told, f"{filled}{source}")
        console.print(table)

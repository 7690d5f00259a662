"""``kveik bench``: what a cache is worth for a workload, measured so that it cannot fool anybody."""

import argparse
import datetime
import importlib.util
import json
import secrets
import sys
from collections.abc import Callable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from rich.console import Console

from kveik.bench import bench_report
from kveik.bench.arrivals import at_rate
from kveik.bench.bench_report import About
from kveik.bench.comparison import Comparison
from kveik.bench.machine import this_machine
from kveik.bench.made_workloads import GrowingChats, PrefixRepetition, SharedDocuments
from kveik.bench.measuring import Bench, BenchPlan, Target, target
from kveik.bench.mooncake_trace import TraceScale, read_trace, sample_trace, trace_text, trace_workload
from kveik.bench.planned import TokenPool, Workload
from kveik.bench.vllm_serve import VllmFigures, VllmServe
from kveik.cli.progress import progress_printer
from kveik.errors import ConfigError, EngineError, KveikError
from kveik.verify.proof import Say

MEASURED, NOT_USABLE, WRONG_USE, NOT_CARRIED_OUT = 0, 1, 2, 3

EPILOG = """\
workloads:
  prefix      a few prefixes, each with many suffixes, as `vllm bench serve --dataset-name prefix_repetition`
  documents   several questions on each of the same long documents, in shuffled order
  chats       chats whose history grows turn by turn
  trace       a Mooncake trace: JSON lines with timestamp, input_length, output_length, hash_ids

examples:
  kveik bench prefix --url http://127.0.0.1:8000 --compare
      one service with its cache and without: off is a cache salt for each request, which finds nothing
  kveik bench documents --url http://127.0.0.1:8000 --off-url http://127.0.0.1:9000 --rounds 5
      two services, in turn
  kveik bench trace --make-trace sample.jsonl ; kveik bench trace --trace sample.jsonl --url http://127.0.0.1:8000

Each run gets a cache salt of its own, so it begins cold. A run whose prompts were known before is labelled warm; one
whose figures mean something else than they say (failed or short answers, traffic of others, a restart, a client that
was too slow, answers that a hit changed) is void. docs/bench.md explains every figure.

exit codes:
  0  measured
  1  measured, but the figures are void, or of a warm cache: the first line says why
  2  wrong use: unknown or contradicting arguments
  3  could not be carried out: the message says why
"""

_Made = PrefixRepetition | SharedDocuments | GrowingChats
_MADE: Mapping[str, type[_Made]] = {"prefix": PrefixRepetition, "documents": SharedDocuments, "chats": GrowingChats}
_ROUNDS = 3


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = EPILOG
    parser.add_argument("workload", choices=[*_MADE, "trace"], help="what is asked; see below")
    _add_services(parser.add_argument_group("services"))
    _add_sending(parser.add_argument_group("sending"))
    _add_lengths(parser.add_argument_group("workload; each of them only for some, default in brackets"))
    _add_output(parser.add_argument_group("output"))


def _add_services(group: Any) -> None:
    group.add_argument("--url", metavar="URL", help="the service: an engine or a router")
    group.add_argument("--off-url", metavar="URL", help="the same without the cache, to compare with")
    group.add_argument("--compare", action="store_true", help="compare with the same service, with a salt a request")
    group.add_argument("--model", default="", metavar="NAME", help="default: the first one that the service lists")
    group.add_argument(
        "--engine", action="append", default=[], metavar="URL", help="an engine behind --url whose counters are read; "
        "default: the service itself, or the engines of a Kveik router"
    )  # fmt: skip
    group.add_argument("--api-key-file", type=Path, metavar="FILE", help="holds the key for both services")
    group.add_argument("--timeout", type=float, default=300.0, metavar="S", help="longest silence of an answer (300)")


def _add_sending(group: Any) -> None:
    group.add_argument("--rate", type=float, default=0.0, metavar="N", help="requests a second, at random moments")
    group.add_argument(
        "--concurrency", type=int, default=0, metavar="N", help="requests under way at once (4; no limit with --rate)"
    )
    group.add_argument(
        "--rounds", type=int, default=0, metavar="N", help=f"({_ROUNDS} where two sides are compared, else 1)"
    )
    group.add_argument("--seed", type=int, default=1, metavar="N", help="of prompts, their order and moments (1)")
    group.add_argument(
        "--salt", default="", metavar="TEXT", help="one cache salt for all runs, to measure a warm cache"
    )
    group.add_argument(
        "--no-salt", action="store_true", help="for services that refuse cache_salt: new prompts a round"
    )


def _add_lengths(group: Any) -> None:
    for name, (kinds, default) in _lengths().items():
        kind = float if isinstance(default, float) else int
        group.add_argument(_flag(name), type=kind, metavar="S" if kind is float else "N", help=kinds)
    group.add_argument("--trace", type=Path, metavar="FILE", help="trace: the file")
    group.add_argument("--shorter", type=int, metavar="N", help="trace: divide all lengths by N (1)")
    group.add_argument("--speed", type=float, metavar="N", help="trace: N times as fast (1)")
    group.add_argument(
        "--make-trace", type=Path, metavar="FILE", help="trace: write a made-up one of --requests, and end"
    )


def _add_output(group: Any) -> None:
    group.add_argument(
        "--json", type=Path, metavar="FILE", help="write all figures and requests; - for standard output"
    )
    group.add_argument("--plot", type=Path, metavar="FILE", help="write a PNG (needs matplotlib: kveik[plot])")
    group.add_argument("--also-vllm", action="store_true", help="prefix: run `vllm bench serve` too, and show both")
    group.add_argument(
        "--vllm-python", default=sys.executable, metavar="PATH", help="a Python that has vLLM (this one)"
    )
    group.add_argument("--tokenizer", default="", metavar="DIR", help="for --also-vllm: the model's folder (--model)")


def _lengths() -> dict[str, tuple[str, int | float]]:
    """The parameters of made-up workloads by name: which workload has which default, and one of the defaults."""
    found: dict[str, tuple[list[str], int | float]] = {"requests": (["trace: its first N (100)"], 100)}
    for workload, kind in _MADE.items():
        for parameter in fields(kind):
            default: Any = parameter.default
            found.setdefault(parameter.name, ([], default))[0].append(f"{workload} ({default:g})")
    return {name: (", ".join(kinds), default) for name, (kinds, default) in found.items()}


def _flag(name: str) -> str:
    return f"--{name.removesuffix('_s').replace('_', '-')}"


def run(args: argparse.Namespace) -> int:
    """Measure, and print what came of it; the exit code says whether the figures can be used."""
    say = progress_printer()
    try:
        if args.make_trace:
            return _make_trace(args)
        make = _maker(args)
        found, vllm = _measure(args, _plan(args), make, say)
    except ConfigError as error:
        print(f"kveik bench: {error}", file=sys.stderr)
        return WRONG_USE
    except (KveikError, OSError) as error:
        print(f"kveik bench: could not be carried out: {error}", file=sys.stderr)
        return NOT_CARRIED_OUT
    if args.also_vllm and vllm is None:
        return NOT_CARRIED_OUT
    return MEASURED if found.verdict == "measured" else NOT_USABLE


def _measure(
    args: argparse.Namespace, plan: BenchPlan, make: Callable[[TokenPool], Workload], say: Say
) -> tuple[Comparison, VllmFigures | None]:
    about = _about(args, plan)
    say(f"{args.workload} on {', '.join(about.addresses.values())}, from {about.machine}")
    bench = Bench(plan, make, args.seed, say)
    theirs = _vllm(args, plan.on) if args.also_vllm else None
    if theirs is not None:
        theirs.check()
    found = bench.run()
    vllm = None
    if theirs is not None:
        say("vllm bench serve: the same workload")
        try:
            vllm = theirs.run(bench.workload)
        except EngineError as error:
            say(str(error))  # our own figures are there all the same
    _show(args, found, bench.workload, about, vllm)
    return found, vllm


def _show(
    args: argparse.Namespace, found: Comparison, workload: Workload, about: About, vllm: VllmFigures | None
) -> None:
    document = json.dumps(bench_report.document(found, workload, about, vllm), indent=1, ensure_ascii=False) + "\n"
    if args.json and str(args.json) == "-":
        sys.stdout.write(document)
    else:
        print(bench_report.headline(found, about))
        # A file or pipe has no width; the table needs this much.
        Console(width=None if sys.stdout.isatty() else 160).print(bench_report.table(found, workload, vllm))
        print(bench_report.conclusion(found))
        for finding in found.findings:
            print(f"{finding.grade.value}: {finding.text}")
        if args.json:
            args.json.write_text(document, encoding="utf8")
    if args.plot:
        from kveik.bench import bench_plot

        bench_plot.draw(found, workload, about, args.plot)


# -- what was asked for ------------------------------------------------------------------------


def _maker(args: argparse.Namespace) -> Callable[[TokenPool], Workload]:
    """What makes the workload of a pool of tokens. Raises :class:`ConfigError` for arguments of another workload."""
    _check_use(args)
    if args.workload == "trace":
        given = {name: value for name in ("requests", "shorter", "speed") if (value := getattr(args, name)) is not None}
        scale = TraceScale(**given)
        with args.trace.open("rb") as lines:
            trace = read_trace(lines, str(args.trace), scale.requests)
        return lambda pool: trace_workload(trace, scale, pool, args.trace.name)
    kind = _MADE[args.workload]
    names = [parameter.name for parameter in fields(kind)]
    made = kind(**{name: value for name in names if (value := getattr(args, name.removesuffix("_s"))) is not None})
    made.workload(TokenPool(range(256), args.seed), args.seed)  # says what is wrong with it before anything is asked
    if not args.rate:
        return lambda pool: made.workload(pool, args.seed)
    return lambda pool: at_rate(made.workload(pool, args.seed), args.rate, args.seed)


def _check_use(args: argparse.Namespace) -> None:
    own: Mapping[str, set[str]] = {
        **{name: {parameter.name for parameter in fields(kind)} for name, kind in _MADE.items()},
        "trace": {"requests", "trace", "shorter", "speed"},
    }
    for name in sorted(set().union(*own.values()) - own[args.workload]):
        if getattr(args, name.removesuffix("_s")) is not None:
            raise ConfigError(f"{_flag(name)} is not for {args.workload}")
    if not args.url:
        raise ConfigError("--url is missing: the address of the service")
    if args.workload == "trace" and args.trace is None:
        raise ConfigError("--trace is missing: the file, or write a made-up one with --make-trace")
    if args.workload == "trace" and args.rate:
        raise ConfigError("--rate is not for trace: it has its own moments; use --speed")
    for name, least, most in (
        ("rate", 0.0, 1e5),
        ("concurrency", 0, 4096),
        ("rounds", 0, 1000),
        ("timeout", 1.0, 3600.0),
    ):
        if not least <= getattr(args, name) <= most:
            raise ConfigError(f"--{name} is {getattr(args, name):g}, expected {least:g} to {most:g}")
    if args.also_vllm and args.workload != "prefix":
        raise ConfigError("--also-vllm is for prefix, which vllm bench serve has as well")
    for file in (args.json, args.plot):
        if file is not None and not file.parent.is_dir():
            raise ConfigError(f"{file} cannot be written: there is no folder {file.parent}")
    if args.plot and importlib.util.find_spec("matplotlib") is None:
        raise ConfigError("--plot needs matplotlib, which is not installed here: pip install 'kveik[plot]'")


def _plan(args: argparse.Namespace) -> BenchPlan:
    key = _api_key(args.api_key_file)
    on = target(args.url, model=args.model, api_key=key, engines=args.engine, timeout_s=args.timeout)
    off = target(args.off_url, model=args.model, api_key=key, timeout_s=args.timeout) if args.off_url else None
    two = off is not None or args.compare
    timed = args.rate or args.workload == "trace"
    return BenchPlan(
        on=on,
        off=off,
        off_by_salt=args.compare,
        rounds=args.rounds or (_ROUNDS if two else 1),
        places=args.concurrency or (0 if timed else 4),
        fixed_salt=args.salt,
        salted=not args.no_salt,
    )


def _api_key(file: Path | None) -> str:
    if file is None:
        return ""
    try:
        return file.read_text(encoding="utf8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read --api-key-file {file}: {getattr(error, 'strerror', None) or error}") from None


def _about(args: argparse.Namespace, plan: BenchPlan) -> About:
    sides = {side: plan.side(side) for side in plan.sides}
    off_how = "the same service, each request with a cache salt of its own" if plan.off_by_salt else ""
    cold = "each run has a cache salt of its own"
    if args.salt:
        cold = "all runs have one salt: only the first can be cold"
    elif args.no_salt:
        cold = "each round has new prompts"
    return About(
        date=datetime.datetime.now(datetime.UTC),
        machine=this_machine(),
        addresses={side: one.url for side, one in sides.items()},
        models={side: one.model.name for side, one in sides.items()},
        versions={side: _version(one) for side, one in sides.items()},
        off_how=off_how or (f"the service at {plan.off.url}" if plan.off else ""),
        cold_how=cold,
        rounds=plan.rounds,
        places=plan.places,
        per_s=args.rate,
        seed=args.seed,
        simulated=any(one.simulated for one in sides.values()),
    )


def _version(service: Target) -> str:
    try:
        return service.client.version()
    except EngineError:  # a router need not say
        return ""


def _vllm(args: argparse.Namespace, on: Target) -> VllmServe:
    return VllmServe(
        python=args.vllm_python,
        tokenizer=args.tokenizer or on.model.name,
        url=on.url,
        model=on.model.name,
        salt=f"kveik-bench-vllm-{secrets.token_hex(6)}",
        seed=args.seed,
        per_s=args.rate,
        places=args.concurrency or (0 if args.rate else 4),
        api_key=_api_key(args.api_key_file),
    )


def _make_trace(args: argparse.Namespace) -> int:
    if args.workload != "trace":
        raise ConfigError("--make-trace is for trace")
    scale = TraceScale(requests=100 if args.requests is None else args.requests)
    args.make_trace.write_bytes(trace_text(sample_trace(scale.requests, args.seed)))
    print(f"{args.make_trace}: {scale.requests} made-up requests in the form of Mooncake's traces")
    return MEASURED

"""``kveik launch``: commands for a kind of hardware, a model and a cache tier; or what is wrong with a given line."""

import argparse
import json
import sys
from pathlib import Path

from kveik.errors import ConfigError, LineUnreadableError
from kveik.profiles import catalog
from kveik.profiles.line_check import Report, check_text
from kveik.profiles.real_parser import ask_real_parser
from kveik.profiles.wish import Given, wish
from kveik.profiles.written import FORMS, as_text, launch_files, write

EPILOG = """\
  kveik launch --list
  kveik launch --hardware a3 --model glm-5 --tier yuanrong
  kveik launch --hardware a2 --model glm-5 --tier kveik --nodes 2 --address 10.0.0.1 --address 10.0.0.2 \\
      --interface bond0 --shared-folder /mnt/kv --output launch
  kveik launch --check run_engine.sh
  echo "vllm serve /models/m --swap-space 4" | kveik launch --check -

Without --output everything is printed. --check names options and environment variables of `vllm serve` that are
unknown, removed, renamed, without effect or that contradict each other, and what does the same today. It compares with
the options of vLLM 0.32, or, with --python, asks the parser of the vLLM that is installed there.

exit codes:
  0  written; or the checked line fits
  1  the checked line does not fit
  2  wrong use, or a combination that does not work: the message says why
  3  the line to check could not be read, or the parser could not be asked
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = EPILOG
    what = parser.add_argument_group("what to launch")
    what.add_argument("--hardware", choices=catalog.names("hardware"), help="of each node")
    what.add_argument("--model", choices=catalog.names("models"), help="which preset")
    what.add_argument("--tier", choices=catalog.names("tiers"), default="none", help="where KV blocks are kept (none)")
    what.add_argument("--nodes", type=int, default=1, metavar="N", help="how many (1)")
    what.add_argument("--list", action="store_true", help="say what there is, with sources, and stop")
    how = parser.add_argument_group("values of this site")
    how.add_argument("--address", action="append", default=[], metavar="IP", help="of each node, in order")
    how.add_argument(
        "--interface", action="append", default=[], metavar="NIC", help="that owns it; once if all are alike"
    )
    how.add_argument("--model-folder", default="", metavar="DIR", help="where the model lies, on all nodes")
    how.add_argument("--served-name", default="", metavar="NAME", help="under which clients ask for it")
    how.add_argument("--image", default="", help="container image of the engines; default: the profile's")
    how.add_argument("--port", type=int, default=8000, help="of the first engine of a node (8000)")
    how.add_argument("--context", type=int, default=0, metavar="TOKENS", help="longest prompt and answer")
    how.add_argument("--requests", type=int, default=0, metavar="N", help="computed at once by a rank")
    how.add_argument("--store-gib", type=int, default=64, metavar="GIB", help="memory of a node for the tier (64)")
    how.add_argument("--shared-folder", default="", metavar="DIR", help="for tiers that keep blocks in files")
    out = parser.add_argument_group("what to write")
    out.add_argument("--form", choices=tuple(FORMS), default="shell", help="(shell)")
    out.add_argument("--output", type=Path, metavar="DIR", help="write files there instead of printing them")
    out.add_argument("--force", action="store_true", help="replace files that differ")
    check = parser.add_argument_group("check a line instead")
    check.add_argument("--check", metavar="FILE", help="a script or line with `vllm serve`; - reads stdin")
    check.add_argument("--python", default="", metavar="PATH", help="of an environment with vLLM: ask its own parser")
    check.add_argument(
        "--ascend", metavar="VERSION", default="0.30.0", help="vllm-ascend that reads variables (0.30.0)"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document")


def run(args: argparse.Namespace) -> int:
    """Write or check; the exit code says what came of it."""
    try:
        if args.list:
            return _list(as_json=args.json)
        if args.check is not None:
            return _check(args)
        return _launch(args)
    except ConfigError as error:
        print(f"kveik launch: {error}", file=sys.stderr)
        return 2
    except LineUnreadableError as error:
        print(f"kveik launch: {error}", file=sys.stderr)
        return 3


def _launch(args: argparse.Namespace) -> int:
    if not (args.hardware and args.model):
        raise ConfigError("give --hardware and --model (`--list` says what there is), or --check FILE")
    wanted = wish(args.hardware, args.model, args.tier, _given(args))
    files = launch_files(wanted, args.form)
    for warning in wanted.warnings:
        print(f"kveik launch: note: {warning}", file=sys.stderr)
    if args.output:
        written = write(files, args.output, force=args.force)
        print(json.dumps([str(path) for path in written]) if args.json else "\n".join(map(str, written)))
    else:
        print(json.dumps(files, indent=1) if args.json else as_text(files), end="\n" if args.json else "")
    return 0


def _given(args: argparse.Namespace) -> Given:
    return Given(
        nodes=args.nodes,
        addresses=tuple(args.address),
        interfaces=tuple(args.interface),
        model_folder=args.model_folder,
        served=args.served_name,
        image=args.image,
        port=args.port,
        context=args.context,
        requests=args.requests,
        store_gib=args.store_gib,
        shared_folder=args.shared_folder,
    )


def _check(args: argparse.Namespace) -> int:
    text = _read(args.check)
    report = check_text(text, args.ascend)
    if args.python:
        report = ask_real_parser(report, args.python)
    if args.json:
        print(json.dumps(report.document(), indent=1, ensure_ascii=False))
    else:
        _print(report)
    return 0 if report.fits else 1


def _read(name: str) -> str:
    try:
        return sys.stdin.read() if name == "-" else Path(name).read_text("utf8")
    except (OSError, UnicodeDecodeError) as error:
        raise LineUnreadableError(f"cannot read {name}: {error}") from error


def _print(report: Report) -> None:
    for finding in report.findings:
        print(f"{finding.severity}: {finding.name}: {finding.told}")
        if finding.instead:
            print(f"    instead: {finding.instead}")
        if finding.source:
            print(f"    source: {finding.source}")
    print(f"{'fits' if report.fits else 'does not fit'}: {report.judged_by}")


def _list(*, as_json: bool) -> int:
    rows = {
        "hardware": [
            (name, catalog.hardware(name).title, catalog.hardware(name).source) for name in catalog.names("hardware")
        ],
        "models": [(name, catalog.model(name).title, catalog.model(name).source) for name in catalog.names("models")],
        "tiers": [(name, catalog.tier(name).title, catalog.tier(name).source) for name in catalog.names("tiers")],
    }
    if as_json:
        print(
            json.dumps(
                {kind: [{"name": n, "title": t, "source": s} for n, t, s in found] for kind, found in rows.items()}
            )
        )
        return 0
    for kind, found in rows.items():
        print(kind)
        for name, title, source in found:
            print(f"  {name:<20} {title}\n  {'':<20} ({source})")
    return 0

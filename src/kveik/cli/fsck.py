"""``kveik fsck``: whether what lies in a tier is what it should be."""

import argparse
import json
import mmap
import os
import sys
import time
from pathlib import Path

from rich.console import Console
from rich.table import Table

from kveik.agent.tiers import KINDS, TierContext
from kveik.byte_size import size_text
from kveik.cli.fleet_access import DEFAULT_CONFIG
from kveik.config import AgentSettings, load, load_stores
from kveik.errors import ConfigError, StoreError
from kveik.store.base import ListedStore
from kveik.store.canary import PROBE_NAMESPACE
from kveik.store.fsck import AGES, BAD, Depth, FolderReport
from kveik.store.fsck_sample import SampleReport, sample
from kveik.store.fsck_walk import FolderWalk, Progress

EPILOG = f"""\
Of the filesystem tier every file is read. Agents may use the folder meanwhile, on this and on other nodes. Nothing is
changed without --repair, which removes blocks that two looks found wrong and that are older than a minute, and
temporary files whose writer is gone. Files that carry no name of Kveik's are counted and never touched.

Of other tiers --sample blocks are read back, if the store can say which it has.

Without --folder and --config, the folder is the one that {DEFAULT_CONFIG} or KVEIK_AGENT_FILESYSTEM names.

exit codes:
  0  sound
  1  something was found that is not; with --repair it may be gone now
  2  wrong use: a setting is not valid, or no such tier is configured
  3  the tier could not be read, or cannot say what it has
"""

SOUND, FOUND, WRONG_USE, NOT_READ = 0, 1, 2, 3
_FRAME_MAX_BYTES = 256 << 20
_TELL_EVERY_S = 1.0
_SHOWN = 20
_WIDTH = 140


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = EPILOG
    parser.add_argument(
        "tier", nargs="?", default="filesystem", metavar="TIER", help=f"{', '.join(KINDS)} (filesystem)"
    )
    parser.add_argument("--config", type=Path, metavar="FILE", help="configuration that names the tier")
    parser.add_argument("--folder", default="", metavar="DIR", help="folder of the filesystem tier")
    parser.add_argument(
        "--depth",
        choices=[depth.value for depth in Depth],
        default=Depth.BYTES.value,
        help="how closely to look at each block: its size, its header, or all bytes (bytes)",
    )
    parser.add_argument("--sample", type=int, default=200, metavar="N", help="blocks to read of other tiers (200)")
    parser.add_argument("--repair", action="store_true", help="remove what is certainly wrong, in the filesystem tier")
    parser.add_argument("--json", action="store_true", help="print the report as one JSON document")


def run(args: argparse.Namespace) -> int:
    """Look, print, and say by the exit code what came of it."""
    try:
        if args.tier not in KINDS:
            raise ConfigError(f"there is no tier {args.tier!r}, expected one of {', '.join(KINDS)}")
        if args.sample < 1:
            raise ConfigError(f"--sample is {args.sample}, expected 1 or more")
        report: FolderReport | SampleReport = _walk(args) if args.tier == "filesystem" else _sample(args)
    except ConfigError as error:
        print(f"kveik fsck: {error}", file=sys.stderr)
        return WRONG_USE
    except StoreError as error:
        print(f"kveik fsck: {error}", file=sys.stderr)
        return NOT_READ
    if args.json:
        print(json.dumps(report.document(), indent=1))
    elif isinstance(report, FolderReport):
        # A file or pipe has no width; the table needs this much.
        show_folder(report, Console(width=None if sys.stdout.isatty() else _WIDTH), repair=args.repair)
    else:
        show_sample(report, Console())
    return FOUND if report.bad else SOUND


def tier_folder(args: argparse.Namespace) -> Path:
    """The folder of the filesystem tier. Raises :class:`ConfigError` when none is named."""
    folder = args.folder or agent_settings(args).filesystem
    if not folder:
        raise ConfigError("no filesystem tier is configured: name its folder with --folder, or a --config that does")
    return Path(folder)


def agent_settings(args: argparse.Namespace) -> AgentSettings:
    """The ``[agent]`` section of the configuration that is meant. Raises :class:`ConfigError`."""
    return load(AgentSettings, file=config_file(args), environ=os.environ)


def config_file(args: argparse.Namespace) -> Path | None:
    """The configuration that is meant: the one given, else the one that is here."""
    config: Path | None = args.config
    return config or (DEFAULT_CONFIG if DEFAULT_CONFIG.is_file() else None)


class Ticker:
    """Prints a line to standard error now and then, over the last one where that is a terminal."""

    def __init__(self) -> None:
        self._told_at_s = time.monotonic()
        self._open = False

    def tell(self, text: str) -> None:
        """Print, unless it was done a moment ago."""
        now_s = time.monotonic()
        if now_s - self._told_at_s < _TELL_EVERY_S:
            return
        self._told_at_s = now_s
        self._open = sys.stderr.isatty()
        print(f"\r{text}\033[K" if self._open else text, end="" if self._open else "\n", file=sys.stderr, flush=True)

    def end(self) -> None:
        """End the line."""
        if self._open:
            print(file=sys.stderr)


def _walk(args: argparse.Namespace) -> FolderReport:
    ticker = Ticker()

    def told(progress: Progress) -> None:
        ticker.tell(f"{progress.files} files, {size_text(progress.bytes)} read, now in {progress.where or '.'}")

    try:
        return FolderWalk(tier_folder(args), Depth(args.depth), progress=told).run(repair=args.repair)
    finally:
        ticker.end()


def _sample(args: argparse.Namespace) -> SampleReport:
    config = config_file(args)
    agent, stores = agent_settings(args), load_stores(file=config, environ=os.environ)
    kind = KINDS[args.tier]
    if not kind.wanted(agent, stores):
        raise ConfigError(f"tier {args.tier!r} is not configured: set its address in a --config")
    if args.repair:
        raise ConfigError(
            f"--repair is for the filesystem tier: {args.tier} takes wrong blocks out of use as they are read"
        )
    ticker = Ticker()
    descriptor = os.memfd_create("kveik-fsck")
    os.ftruncate(descriptor, _FRAME_MAX_BYTES)
    memory = memoryview(mmap.mmap(descriptor, _FRAME_MAX_BYTES))
    store = kind.open(TierContext(agent, stores, memory, open_memory=lambda: os.dup(descriptor)))
    try:
        if not isinstance(store, ListedStore):
            raise StoreError(f"{args.tier} tier cannot say which blocks it has, so nothing can be read back")
        return sample(
            store,
            store,
            memory,
            most=args.sample,
            get_s=agent.tier_deadline_s,
            progress=lambda report: ticker.tell(f"{report.read} of {min(args.sample, report.listed)} blocks read back"),
        )
    finally:
        ticker.end()
        store.close()
        os.close(descriptor)


def show_folder(report: FolderReport, console: Console, *, repair: bool) -> None:
    """Print what a walk found."""
    console.print(namespace_table(report))
    findings = Table("finding", "files", "bytes", title="findings", title_justify="left")
    for name, count in sorted(report.counts.items()):
        findings.add_row(name, str(count), size_text(report.bytes[name]))
    console.print(findings)
    told = [found for found in report.listed if found.finding in BAD]
    for found in told[:_SHOWN]:
        gone = " (removed)" if found.removed else ""
        print(f"{found.finding.value}: {found.path}: {found.why or size_text(found.size)}{gone}")
    if len(told) > _SHOWN:
        print(f"... and more; --json names up to {len(told)}")
    verdict = "sound" if not report.bad else f"{report.bad} files are not sound"
    repaired = f", {report.removed} removed" if repair else ""
    print(
        f"{report.folder} on {report.medium}: {report.blocks} blocks, {size_text(report.block_bytes)}:"
        f" {verdict}{repaired}"
    )


def namespace_table(report: FolderReport) -> Table:
    """Blocks by namespace and age."""
    table = Table(
        "model", "namespace", "blocks", "bytes", *(f"< {name}" if name != "older" else name for _, name in AGES), "bad",
        title=f"namespaces in {report.folder}", title_justify="left",
    )  # fmt: skip
    bad = {finding.value for finding in BAD}
    for digest, tally in sorted(report.namespaces.items(), key=lambda item: (item[1].label, item[0])):
        wrong = sum(count for name, count in tally.findings.items() if name in bad)
        ages = (str(tally.by_age[name]) for _, name in AGES)
        label = "(probes)" if digest == PROBE_NAMESPACE.hex() else tally.label or "?"
        table.add_row(label, digest, str(tally.blocks), size_text(tally.bytes), *ages, str(wrong))
    return table


def show_sample(report: SampleReport, console: Console) -> None:
    """Print what reading back gave."""
    table = Table("result", "blocks")
    for name, count in sorted(report.results.items()):
        table.add_row(name, str(count))
    console.print(table)
    for line in report.wrong[:_SHOWN]:
        print(line)
    verdict = "sound" if not report.bad else f"{report.bad} blocks are not sound"
    print(f"{report.tier}: {report.read} of {report.listed} blocks read back: {verdict}")

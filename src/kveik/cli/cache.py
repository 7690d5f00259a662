"""``kveik cache``: what the cache holds for which model; drop a model's blocks; warm prompts up."""

import argparse
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from kveik.agent.client import AgentClient
from kveik.byte_size import size_text
from kveik.cli.cache_warm import add_warm
from kveik.cli.fleet_access import DEFAULT_CONFIG
from kveik.cli.fsck import Ticker, agent_settings
from kveik.clock import Deadline
from kveik.errors import AgentError, ConfigError, KveikError, StoreError
from kveik.store.canary import PROBE_NAMESPACE
from kveik.store.fsck import Depth, Finding, FolderReport
from kveik.store.fsck_walk import FolderWalk

EPILOG = f"""\
The node's agent and the folder of the filesystem tier are those of --config, of {DEFAULT_CONFIG} if it is here, or of
the environment (KVEIK_AGENT_SOCKET, KVEIK_AGENT_FILESYSTEM). Each command has its own --help:

  kveik cache ls | du [--config FILE] [--socket PATH] [--folder DIR] [--json]
  kveik cache drop NAMESPACE | --model NAME [--yes]
  kveik cache warm FILE [--router URL | --engine URL] [--lines] [--concurrency N]

exit codes:
  0  done
  1  drop: blocks may be left somewhere, or you said no; warm: some requests failed
  2  wrong use: a setting is not valid, or no such namespace is known
  3  no agent, router or engine answered, or the folder could not be read
"""

DONE, NOT_ALL, WRONG_USE, AWAY = 0, 1, 2, 3
_WIDTH = 140
_FACTS = ("dtype", "kv_cache_dtype", "hash_block_size_tokens")


@dataclass(frozen=True, slots=True)
class Held:
    """What one tier holds of one namespace. Ages in seconds, where they are known; ``label`` is the model's name."""

    tier: str
    namespace: str
    label: str
    blocks: int
    bytes: int
    oldest_s: float | None = None
    newest_s: float | None = None
    facts: Mapping[str, str] = field(default_factory=dict)


@dataclass(slots=True)
class Looked:
    """What was found out: the agent's state and the folder's report, as far as there are such; and why not."""

    state: Mapping[str, Any] | None = None
    folder: FolderReport | None = None
    notes: list[str] = field(default_factory=list)

    def held(self) -> list[Held]:
        """What is where, by model, namespace and tier."""
        rows = [*_in_arena(self.state), *_in_folder(self.folder)]
        facts = {row.namespace: row.facts for row in rows if row.facts}
        labels = {PROBE_NAMESPACE.hex(): "(probes)"} | {row.namespace: row.label for row in rows if row.label}
        named = [replace(row, label=labels.get(row.namespace, ""), facts=facts.get(row.namespace, {})) for row in rows]
        return sorted(named, key=lambda row: (row.label, row.namespace))


def _in_arena(state: Mapping[str, Any] | None) -> list[Held]:
    spaces = state["namespaces"] if state is not None else []
    return [
        Held("arena", one["digest"], one["label"], one["blocks"], one["bytes"], facts=one.get("facts", {}))
        for one in spaces
    ]


def _in_folder(report: FolderReport | None) -> list[Held]:
    spaces = report.namespaces.items() if report is not None else []
    return [
        Held(
            "filesystem", digest, one.label, one.blocks, one.bytes,
            one.oldest_s if one.blocks else None, one.newest_s if one.blocks else None, one.facts,
        )
        for digest, one in spaces
    ]  # fmt: skip


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the commands below this one."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = EPILOG
    commands = parser.add_subparsers(title="commands", metavar="WHAT", required=True)
    listing = commands.add_parser("ls", help="what is there for which model, in which tier")
    _add_places(listing)
    listing.set_defaults(do=_list)
    usage = commands.add_parser("du", help="bytes by tier and model, against the limits")
    _add_places(usage)
    usage.set_defaults(do=_usage)
    drop = commands.add_parser(
        "drop",
        help="delete all blocks of a namespace, in the arena and below",
        description="Delete all blocks of a namespace or model through this node's agent: from its arena and from the"
        " tiers below. Arenas of other nodes keep theirs: do it there as well.",
    )
    drop.add_argument("namespace", nargs="?", default="", metavar="NAMESPACE", help="its digest, or how that begins")
    drop.add_argument("--model", default="", metavar="NAME", help="all namespaces of this model")
    drop.add_argument("--yes", action="store_true", help="do not ask")
    drop.add_argument("--timeout", type=float, default=600.0, metavar="S", help="how long deleting may take (600)")
    _add_places(drop)
    drop.set_defaults(do=_drop)
    add_warm(commands)


def run(args: argparse.Namespace) -> int:
    """Do what was asked."""
    try:
        code: int = args.do(args)
    except ConfigError as error:
        print(f"kveik cache: {error}", file=sys.stderr)
        return WRONG_USE
    except KveikError as error:
        print(f"kveik cache: {error}", file=sys.stderr)
        return AWAY
    return code


def _add_places(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--config", type=Path, metavar="FILE", help=f"configuration ({DEFAULT_CONFIG} if it is here)")
    parser.add_argument("--socket", default="", metavar="PATH", help="the agent's socket")
    parser.add_argument("--folder", default="", metavar="DIR", help="folder of the filesystem tier")
    parser.add_argument("--json", action="store_true", help="print one JSON document")


# -- looking --------------------------------------------------------------------------------


def look(args: argparse.Namespace) -> Looked:
    """Ask the agent and walk the folder. Raises :class:`KveikError` when neither can be had."""
    settings = agent_settings(args)
    looked = Looked()
    try:
        looked.state = ask(args.socket or settings.socket)
    except AgentError as error:
        looked.notes.append(str(error))
    folder = args.folder or settings.filesystem
    if folder:
        try:
            looked.folder = _survey(Path(folder))
        except StoreError as error:
            looked.notes.append(str(error))
    if looked.state is None and looked.folder is None:
        raise AgentError("; ".join(looked.notes) or "no agent answers and no folder is configured")
    return looked


def ask(socket: str) -> Mapping[str, Any]:
    """The agent's state. Raises :class:`AgentError`."""
    client = AgentClient.connect(socket, role="cache", prefault=False)
    try:
        return client.stats(Deadline.after(5.0))
    finally:
        client.close()


def _survey(folder: Path) -> FolderReport:
    ticker = Ticker()
    try:
        return FolderWalk(
            folder, Depth.SIZES, progress=lambda progress: ticker.tell(f"{progress.files} files in {folder}")
        ).run()
    finally:
        ticker.end()


def _list(args: argparse.Namespace) -> int:
    looked = look(args)
    rows = looked.held()
    if args.json:
        print(json.dumps({"held": [asdict(row) for row in rows], "notes": looked.notes}, indent=1))
        return DONE
    table = Table("model", "namespace", "dtype, KV dtype, block", "tier", "blocks", "bytes", "used last", "oldest")
    for row in rows:
        ages = (_age_text(row.newest_s), _age_text(row.oldest_s))
        size = size_text(row.bytes)
        table.add_row(row.label or "?", row.namespace[:12], _facts_text(row), row.tier, str(row.blocks), size, *ages)
    # A file or pipe has no width; the table needs this much.
    Console(width=None if sys.stdout.isatty() else _WIDTH).print(table)
    _tell_notes(looked)
    return DONE


def _usage(args: argparse.Namespace) -> int:
    looked = look(args)
    tiers = tier_usage(looked)
    if args.json:
        print(
            json.dumps(
                {"tiers": tiers, "held": [asdict(row) for row in looked.held()], "notes": looked.notes}, indent=1
            )
        )
        return DONE
    table = Table("tier", "model", "blocks", "bytes", "of limit")
    for tier in tiers:
        limit = tier["limit_bytes"]
        share = f"{tier['bytes'] / limit:.0%} of {size_text(limit)}" if limit else "no limit"
        table.add_row(tier["name"], "", str(tier["blocks"]), size_text(tier["bytes"]), share)
        for row in looked.held():
            if row.tier == tier["name"]:
                table.add_row("", row.label or row.namespace[:12], str(row.blocks), size_text(row.bytes), "")
        for name, size in tier["beside"].items():
            table.add_row("", name, "", size_text(size), "not counted")
    Console(width=None if sys.stdout.isatty() else _WIDTH).print(table)
    _tell_notes(looked)
    return DONE


def tier_usage(looked: Looked) -> list[dict[str, Any]]:
    """Each tier with blocks, bytes, its limit (0: none) and what lies ``beside`` its blocks, in bytes by kind.

    The filesystem tier is counted in its folder where that was walked, else as the agent accounts for it.
    """
    tiers: list[dict[str, Any]] = []
    limits: dict[str, int] = {}
    if looked.state is not None:
        arena = looked.state["arena"]
        tiers.append(_tier("arena", arena["blocks"], arena["payload_bytes"], arena["bytes"]))
        for one in looked.state["tiers"]:
            limits[one["name"]] = one["capacity_bytes"]
            if one["name"] != "filesystem" or looked.folder is None:
                tiers.append(_tier(one["name"], one["blocks"], one["bytes"], one["capacity_bytes"]))
    if looked.folder is not None:
        report = looked.folder
        beside = {
            finding.value: report.bytes[finding.value]
            for finding in (Finding.QUARANTINED, Finding.WRITING, Finding.ORPHANED, Finding.UNKNOWN)
            if report.counts[finding.value]
        }
        tiers.append(_tier("filesystem", report.blocks, report.block_bytes, limits.get("filesystem", 0), beside))
    return tiers


def _tier(name: str, blocks: int, size: int, limit: int, beside: Mapping[str, int] | None = None) -> dict[str, Any]:
    return {"name": name, "blocks": blocks, "bytes": size, "limit_bytes": limit, "beside": dict(beside or {})}


def _tell_notes(looked: Looked) -> None:
    for note in looked.notes:
        print(f"not asked: {note}", file=sys.stderr)


def _facts_text(row: Held) -> str:
    if not row.facts:
        return "?"
    dtype, kv_dtype, tokens = (row.facts.get(name, "?") for name in _FACTS)
    return f"{dtype}, {kv_dtype}, {tokens} tokens"


def _age_text(age_s: float | None) -> str:
    if age_s is None:
        return ""
    for limit_s, unit_s, unit in ((120.0, 1.0, "s"), (7200.0, 60.0, "min"), (172800.0, 3600.0, "h")):
        if age_s < limit_s:
            return f"{age_s / unit_s:.0f} {unit}"
    return f"{age_s / 86400:.0f} d"


# -- dropping -------------------------------------------------------------------------------


def _drop(args: argparse.Namespace) -> int:
    if bool(args.namespace) == bool(args.model):
        raise ConfigError("say which namespace to drop, or --model NAME: `kveik cache ls` shows both")
    looked = look(args)
    if looked.state is None:
        raise AgentError(f"dropping needs this node's agent: {'; '.join(looked.notes)}")
    rows = looked.held()
    chosen = choose(rows, args.namespace, args.model)
    if not args.yes and not _agreed([row for row in rows if row.namespace in chosen]):
        return NOT_ALL
    client = AgentClient.connect(args.socket or agent_settings(args).socket, role="cache", prefault=False)
    try:
        dropped = [client.drop_namespace(bytes.fromhex(one), Deadline.after(args.timeout)) for one in chosen]
    finally:
        client.close()
    notes = [note for one in dropped for note in one.notes]
    tiers: dict[str, int] = {"arena": sum(one.count for one in dropped)}
    for one in dropped:
        for tier, blocks in one.tiers.items():
            tiers[tier] = tiers.get(tier, 0) + blocks
    if args.json:
        print(json.dumps({"dropped": tiers, "namespaces": chosen, "notes": notes}, indent=1))
    else:
        print("dropped " + ", ".join(f"{blocks} blocks of the {tier} tier" for tier, blocks in tiers.items()))
        for note in notes:
            print(note)
    return NOT_ALL if notes else DONE


def choose(rows: Iterable[Held], beginning: str, model: str) -> list[str]:
    """The namespaces that are meant. Raises :class:`ConfigError` when none is, or a beginning fits several."""
    known = {row.namespace: row.label for row in rows}
    if model:
        found = sorted(digest for digest, label in known.items() if label == model)
        if not found:
            raise ConfigError(f"nothing is known of model {model!r}; known: {_listed(known.values())}")
        return found
    found = sorted(digest for digest in known if digest.startswith(beginning.lower()))
    if len(found) != 1:
        raise ConfigError(f"{beginning!r} is the beginning of {len(found)} namespaces; known: {_listed(known)}")
    return found


def _listed(names: Iterable[str]) -> str:
    return ", ".join(sorted({name for name in names if name})) or "none"


def _agreed(rows: Sequence[Held]) -> bool:
    for row in rows:
        print(
            f"{row.label or '?'} ({row.namespace[:12]}): {row.blocks} blocks, {size_text(row.bytes)}"
            f" in the {row.tier} tier"
        )
    if not sys.stdin.isatty():
        raise ConfigError("nobody is here to ask: say --yes to drop them")
    return input("Drop all of that? [y/N] ").strip().lower() in ("y", "yes")

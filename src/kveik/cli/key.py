"""``kveik key``: give, list and revoke the router's API keys."""

import argparse
import datetime
import os
import sys
from pathlib import Path

from rich.console import Console
from rich.table import Table

from kveik.config import RouterSettings, load
from kveik.errors import ConfigError
from kveik.router.keys_file import ApiKey, editing, read_keys, with_key_added, with_key_revoked, write_keys

EPILOG = """\
A new key is printed once, on standard output; the file holds only its hash. A running router
follows the file, so a new key works and a revoked one stops working within about a second.

exit codes:
  0  done
  2  no keys file is named, or what was asked makes no sense (a name taken, or unknown)
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = EPILOG
    parser.add_argument("action", choices=("new", "list", "revoke"), help="what to do")
    parser.add_argument("name", nargs="?", default="", help="the key's name, for new and revoke")
    parser.add_argument("--config", type=Path, metavar="FILE", help="TOML file whose [router] section names keys_file")
    parser.add_argument("--keys-file", metavar="PATH", help="the keys file (KVEIK_ROUTER_KEYS_FILE)")
    limits = parser.add_argument_group("limits of a new key", "0 means none")
    limits.add_argument("--models", action="append", default=[], metavar="GLOB", help="models it may use (all)")
    limits.add_argument("--tenant", default="", metavar="NAME", help="who shares its cached prompts (itself)")
    limits.add_argument("--requests-per-min", type=int, default=0, metavar="N", help="requests a minute")
    limits.add_argument("--tokens-per-min", type=int, default=0, metavar="N", help="prompt and output tokens a minute")
    limits.add_argument("--concurrent", type=int, default=0, metavar="N", help="requests at once")


def run(args: argparse.Namespace) -> int:
    """Do it; 2 where that is not possible."""
    try:
        path = _keys_file(args)
        if args.action == "list":
            _list(path)
        elif not args.name:
            raise ConfigError(f"name the key: kveik key {args.action} NAME")
        elif args.action == "new":
            _give(path, args)
        else:
            _revoke(path, args.name)
    except ConfigError as error:
        print(f"kveik key: {error}", file=sys.stderr)
        return 2
    return 0


def _keys_file(args: argparse.Namespace) -> Path:
    given = {} if args.keys_file is None else {"keys_file": args.keys_file}
    named = load(RouterSettings, file=args.config, environ=os.environ, given=given).keys_file
    if not named:
        raise ConfigError("no keys file: give --keys-file, or set keys_file in [router] of --config")
    return Path(named)


def _give(path: Path, args: argparse.Namespace) -> None:
    key = ApiKey(
        name=args.name,
        tenant=args.tenant,
        models=tuple(args.models),
        requests_per_min=args.requests_per_min,
        tokens_per_min=args.tokens_per_min,
        concurrent=args.concurrent,
        created=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    )
    with editing(path) as before:
        keys, secret = with_key_added(before, key)
        write_keys(path, keys)
    print(secret)
    print(f"{args.name} is in {path}; this is the only time that the key is shown", file=sys.stderr)


def _revoke(path: Path, name: str) -> None:
    with editing(path) as keys:
        write_keys(path, with_key_revoked(keys, name))
    print(f"{name} is revoked")


def _list(path: Path) -> None:
    table = Table(title=f"keys in {path}", title_justify="left")
    for column in ("name", "tenant", "models", "requests/min", "tokens/min", "at once", "created"):
        table.add_column(column)
    for key in read_keys(path).keys:
        limits = (str(limit or "-") for limit in (key.requests_per_min, key.tokens_per_min, key.concurrent))
        table.add_row(key.name, key.tenant_name, ", ".join(key.models) or "all", *limits, key.created)
    Console().print(table)

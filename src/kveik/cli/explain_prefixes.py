"""``kveik explain prefixes``: what changes in prompts and makes engines compute again what stands behind it."""

import argparse
import json
import sys

from rich.console import Console
from rich.table import Table
from rich.text import Text

from kveik.cli.fleet_access import DEFAULT_CONFIG, add_access, open_routers
from kveik.diagnose.prefixes import advice, columns_of, joined, read_document, summary, values_of, worth_telling
from kveik.errors import ConfigError, FleetError
from kveik.fleet.report import plain_text
from kveik.router.break_tally import BreakPlace, PrefixesDocument

HELP = "which parts of prompts change and so break what could be shared: dates, ids, tools, reasoning, and whose"

EPILOG = f"""\
  kveik explain prefixes                            as the routers of {DEFAULT_CONFIG} saw it, or of this machine
  kveik explain prefixes --router http://HOST:8100  as one router saw it

Routers compare prompts by hashes; they keep no text of them unless router.explain_contents is set. Lost tokens are
those that an earlier prompt had too, but behind something else. What was seen fewer than three times is not shown.

exit codes:
  0  nothing breaks prefixes, or nothing was seen yet
  1  something does: the table says what, where, and by whom
  2  wrong use: a setting is not valid
  3  no router answered
"""

NOTHING, FOUND, WRONG_USE, AWAY = 0, 1, 2, 3
TOP = 10
_WIDTH = 140


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = EPILOG
    parser.add_argument("--top", type=int, default=TOP, metavar="N", help=f"show the N greatest losses ({TOP})")
    add_access(parser)


def run(args: argparse.Namespace) -> int:
    """Ask the routers, join what they say, print."""
    try:
        if args.top < 1:
            raise ConfigError(f"--top is {args.top}, expected at least 1")
        clients = open_routers(args)[1]
    except ConfigError as error:
        print(f"kveik explain prefixes: {error}", file=sys.stderr)
        return WRONG_USE
    documents: list[PrefixesDocument] = []
    away: list[str] = []
    for client in clients:
        try:
            documents.append(read_document(client.prefixes(), client.url))
        except (FleetError, ConfigError) as error:
            away.append(str(error))
    for why in away:
        print(f"kveik explain prefixes: {plain_text(why, 2000)}", file=sys.stderr)
    if not documents:
        return AWAY
    document = joined(documents)
    places = worth_telling(document)
    if args.json:
        print(json.dumps(values_of(document, away), ensure_ascii=False))
    else:
        _show(document, places[: args.top])
    return FOUND if places else NOTHING


def _show(document: PrefixesDocument, places: list[BreakPlace]) -> None:
    console = Console(width=None if sys.stdout.isatty() else _WIDTH)
    console.print(summary(document), highlight=False, markup=False)
    if not places:
        if document.on and document.looked_at:
            console.print("nothing that changes breaks prefixes", highlight=False)
        return
    table = Table("", "what breaks", "where", "model", "requests", "tokens lost", "share", "clients (tokens lost)")
    for column in (0, 4, 5, 6):
        table.columns[column].justify = "right"
    for number, place in enumerate(places, 1):
        table.add_row(str(number), *(Text(plain_text(cell, 200)) for cell in columns_of(place)))
    console.print(table)
    for line in advice(places, document.now_s):
        console.print(plain_text(line, 1000), highlight=False, markup=False)

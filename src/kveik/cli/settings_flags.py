"""What the commands that serve until a signal have in common: flags from the settings table, and logging."""

import argparse
import logging
import sys
from pathlib import Path
from typing import Any

from kveik.config import rows


def add_settings(parser: argparse.ArgumentParser, section: str, file_help: str) -> None:
    """Declare ``--config`` and one flag for each setting of a section."""
    parser.add_argument("--config", type=Path, metavar="FILE", help=file_help)
    settings = parser.add_argument_group("settings")
    for row in rows(section):
        default = f" ({row.default})" if row.default != "" else ""
        metavar = (row.unit or row.kind.__name__).upper()
        settings.add_argument(
            f"--{row.name.replace('_', '-')}",
            dest=f"set_{row.name}",
            metavar=metavar,
            help=f"{row.help}{default}".replace("%", "%%"),
        )


def given_settings(args: argparse.Namespace) -> dict[str, Any]:
    """The settings that were given as flags, as text."""
    flags = {name.removeprefix("set_"): value for name, value in vars(args).items() if name.startswith("set_")}
    return {name: value for name, value in flags.items() if value is not None}


def log_to_stderr() -> None:
    """Write the log to standard error, a line a message."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s", stream=sys.stderr)

"""Lines of progress: what a command is at, and since how long."""

import sys
import time
from collections.abc import Callable
from typing import TextIO


def progress_printer(stream: TextIO | None = None) -> Callable[[str], None]:
    """Prints each line behind the seconds since now; to stderr unless told otherwise, so that stdout is the result."""
    started_s = time.monotonic()

    def say(text: str) -> None:
        print(f"[{time.monotonic() - started_s:6.1f} s] {text}", file=stream or sys.stderr, flush=True)

    return say

"""What is to be done when the process that asked for it is gone, however it ended.

``python -m kveik.bench.last_will FD COMMAND...`` waits at FD, the reading end of a pipe whose other end only that
process holds, and then runs the command. A byte says that it is not needed any more.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Sequence


class LastWill:
    """A process that runs ``command`` if this one ends before :meth:`revoke`."""

    def __init__(self, command: Sequence[str]) -> None:
        reading, self._writing = os.pipe()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "kveik.bench.last_will", str(reading), *command],
            stdin=subprocess.DEVNULL,
            pass_fds=[reading],
            process_group=0,  # Ctrl-C is for who asked
        )
        os.close(reading)

    def revoke(self) -> None:
        """It is done, or not needed."""
        os.write(self._writing, b"x")
        os.close(self._writing)
        self._process.wait()


def main(arguments: list[str]) -> int:
    """Wait, and run the command in this process's place; 0 if it was not needed."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: None)  # a handler, not SIG_IGN: the command shall hear them
    if not os.read(int(arguments[0]), 1):
        os.execv(arguments[1], arguments[1:])  # noqa: S606 (a command of ours)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

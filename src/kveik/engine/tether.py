"""Run one command and never outlive the process that started it.

``python -m kveik.engine.tether FD COMMAND...`` runs COMMAND in its own process group and watches
FD, the reading end of a pipe whose other end only the starter holds. When the starter ends in
whatever way, kill -9 included, the pipe closes and the whole group is ended: an API server, its
engine core and its workers. (``PR_SET_PDEATHSIG`` would reach the first process only, and fires
already when the *thread* that started it ends.)
"""

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time

GRACE_S = 5.0


def main(arguments: list[str]) -> int:
    """Run the command; its exit code, with 128 + N for signal N."""
    lifeline, command = int(arguments[0]), arguments[1:]
    # A handler, not SIG_IGN: ignored signals would stay ignored in the command.
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: None)
    child = subprocess.Popen(command)
    threading.Thread(target=_end_group_after, args=(lifeline,), daemon=True).start()
    code = child.wait()
    return code if code >= 0 else 128 - code


def _end_group_after(lifeline: int) -> None:
    """Block until the starter is gone, then end everyone in this group, this process included."""
    with contextlib.suppress(OSError):
        while os.read(lifeline, 1):
            pass
    os.killpg(0, signal.SIGTERM)
    time.sleep(GRACE_S)
    os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

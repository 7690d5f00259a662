"""Put a question to the vLLM of another Python, which need not have Kveik, by a script of ours."""

import json
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import kveik
from kveik.errors import LineUnreadableError

_SCRIPTS = Path(kveik.__file__).parent / "connector"
#: Importing vLLM takes a quarter of a minute on a machine that has nothing of it in its cache.
_PATIENT_S = 300.0


def ask_vllm(python: str, script: str, question: Mapping[str, Any]) -> dict[str, Any]:
    """The answer of ``script``, a file of :mod:`kveik.connector`, run by ``python``.

    Raises :class:`LineUnreadableError` if it cannot be had.
    """
    # Text and no module: a script's own folder would be searched for vLLM first.
    command = [python, "-c", (_SCRIPTS / script).read_text("utf8")]
    try:
        done = subprocess.run(
            command,
            cwd="/",
            env={"VLLM_LOGGING_LEVEL": "ERROR", **os.environ},
            input=json.dumps(question),
            capture_output=True,
            text=True,
            timeout=_PATIENT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise LineUnreadableError(f"cannot ask {python}: {error}") from error
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
        raise LineUnreadableError(f"{python} cannot say what its vLLM does: {last}")
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer

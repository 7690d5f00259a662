"""Real engines for tests: one subprocess each, in the vLLM environment, with the connector inside."""

import contextlib
import json
import os
import select
import signal
import subprocess
import time
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar, Self

from prometheus_client.parser import text_string_to_metric_families

DRIVER = Path(__file__).with_name("driver.py")
#: An engine alone takes a quarter of a minute; on a machine that does much else it may take far longer.
BOOT_S = 600.0
ANSWER_S = 240.0
ENDING_S = 30.0


def core_of(number: int) -> str:
    """The core for a test file's engine ``number``; files that are run side by side begin with different cores."""
    cores = sorted(os.sched_getaffinity(0))
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    return str(cores[(number + worker) % len(cores)])


def last_words(log: Path, lines: int = 40) -> str:
    """The end of an engine's log, and before it all that speaks of errors: the first cause stands far above."""
    text = log.read_text(errors="replace").splitlines()
    errors = [line for line in text[:-lines] if "ERROR" in line or "Error:" in line]
    return "\n".join([*errors[:lines], "...", *text[-lines:]])


class EngineDiedError(AssertionError):
    """The engine's process ended; the message has the end of its log."""


class Engine:
    """One in-process vLLM. ``extra`` are connector settings; None runs without a connector."""

    #: Those that run now: a test that fails shows what they say.
    running: ClassVar[set["Engine"]] = set()

    def __init__(
        self,
        python: str,
        model: Path,
        log: Path,
        *,
        extra: dict[str, Any] | None,
        core: int = 0,
        environment: dict[str, str] | None = None,
        **options: Any,
    ) -> None:
        self.log = log
        settings: dict[str, Any] = {
            "model": str(model),
            "dtype": "float32",
            "max_model_len": 2048,
            "kv_cache_memory_bytes": 200_000_000,
            "skip_tokenizer_init": True,
            **options,
        }
        if extra is not None:
            settings["kv_transfer_config"] = {
                "kv_connector": "KveikConnector",
                "kv_role": "kv_both",
                "kv_load_failure_policy": "recompute",
                "kv_connector_extra_config": extra,
            }
        reader, writer = os.pipe()
        self._answers = os.fdopen(reader)
        with log.open("wb") as output:
            self.process = subprocess.Popen(
                [python, str(DRIVER), json.dumps(settings), str(writer)],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                pass_fds=[writer],
                env={**os.environ, "VLLM_CPU_OMP_THREADS_BIND": core_of(core), **(environment or {})},
                process_group=0,
            )
        os.close(writer)
        self.running.add(self)

    def wait_ready(self) -> Self:
        """Wait until the engine has been built."""
        assert self._answer(BOOT_S) == "ready"
        return self

    def _answer(self, seconds: float) -> Any:
        ready, _, _ = select.select([self._answers], [], [], seconds)
        line = self._answers.readline() if ready else ""
        if not line:
            if ready:  # the other end is closed: it is ending
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self.process.wait(ENDING_S)
            state = "gave no answer in time" if self.process.poll() is None else "died"
            raise EngineDiedError(f"the engine {state}; its log ends:\n{self.tail()}")
        return json.loads(line)

    def _ask(self, **command: Any) -> Any:
        assert self.process.stdin is not None
        self.process.stdin.write((json.dumps(command) + "\n").encode())
        self.process.stdin.flush()
        return self._answer(ANSWER_S)

    def generate(self, *prompts: list[int], tokens: int = 8, salt: str = "", lora: str = "") -> list[dict[str, Any]]:
        """Answers with ``ids``, ``logprobs``, ``cached`` (tokens), ``finish`` and ``request`` (its id) for each."""
        answers: list[dict[str, Any]] = self._ask(
            do="generate", prompts=list(prompts), tokens=tokens, salt=salt, lora=lora
        )
        return answers

    def reset(self) -> None:
        """Empty the engine's own prefix cache, as soon as no block is held by a save under way."""
        deadline = time.monotonic() + 30
        while self._ask(do="reset") is not True:
            assert time.monotonic() < deadline, f"blocks stay in use; log ends:\n{self.tail()}"
            self.generate([1, 2, 3], tokens=2)

    def counter(self, name: str, **labels: str) -> float:
        """The sum of a counter's or gauge's samples that carry these labels."""
        total = 0.0
        for family in text_string_to_metric_families(self._ask(do="metrics")):
            for sample in family.samples:
                if sample.name in (name, name + "_total") and labels.items() <= sample.labels.items():
                    total += sample.value
        return total

    def settle(self, name: str, at_least: float, seconds: float = 30.0) -> float:
        """Step the engine with tiny requests until a counter has grown: stats travel with steps."""
        deadline = time.monotonic() + seconds
        while (value := self.counter(name)) < at_least:
            assert time.monotonic() < deadline, f"{name} is {value}, expected {at_least}; log ends:\n{self.tail()}"
            self.generate([1, 2, 3], tokens=2)
        return value

    def wait_saved(self) -> None:
        """Step the engine until no block is held by a save under way: an answer does not wait for its saves."""
        deadline = time.monotonic() + 30
        while True:
            self.generate([1, 2, 3], tokens=2)
            if self.counter("kveik_connector_pinned_blocks") == 0:
                return
            assert time.monotonic() < deadline, f"saves do not end; log ends:\n{self.tail()}"

    def connector_counters(self) -> str:
        """What the connector counted so far, for the message of a failed assertion."""
        lines = self._ask(do="metrics").splitlines()
        return "\n".join(line for line in lines if line.startswith("kveik_connector") and not line.endswith(" 0.0"))

    def tail(self) -> str:
        """The end of the engine's log."""
        return last_words(self.log)

    def story(self) -> str:
        """The connector's counters, if the engine can tell them, and the end of the log."""
        try:
            counters = self.connector_counters() if self.process.poll() is None else "the engine has ended"
        except (AssertionError, OSError, ValueError) as error:  # it was in the midst of something else
            counters = f"no counters: {type(error).__name__}"
        return f"{counters}\n{self.tail()}"

    def kill(self) -> None:
        """kill -9, of its worker processes too."""
        self.running.discard(self)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        if self.process.stdin is not None:
            self.process.stdin.close()
        self._answers.close()

    def __enter__(self) -> Self:
        return self.wait_ready()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()

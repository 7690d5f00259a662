"""Tokenizers in a process of their own: loading one would hold up the router for up to a second.

The calls block, and are for threads. The process starts with the first call and ends with the
router; if it dies, the call under way fails and the next one starts it again.
"""

import contextlib
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import IO

import msgspec

from kveik.errors import RenderError
from kveik.router.tokenization import AboutTokenizer

#: A call that takes longer has met a process that hangs.
STUCK_S = 30.0
_LENGTH_BYTES = 4


class Ask(msgspec.Struct, omit_defaults=True):
    """For the tokens of texts, or for the text of a token, or else about the tokenizer."""

    file: str
    texts: list[str] | None = None
    token: int | None = None


class Answer(msgspec.Struct, omit_defaults=True):
    """What was asked for, or why there is no answer."""

    about: AboutTokenizer | None = None
    tokens: list[bytes] | None = None
    text: str = ""
    error: str = ""


def write_frame(pipe: IO[bytes], payload: bytes) -> None:
    """Write one value, after its length."""
    pipe.write(len(payload).to_bytes(_LENGTH_BYTES, "big") + payload)
    pipe.flush()


def read_frame(pipe: IO[bytes]) -> bytes:
    """Read one value; empty at the end."""
    length = pipe.read(_LENGTH_BYTES)
    return pipe.read(int.from_bytes(length, "big")) if len(length) == _LENGTH_BYTES else b""


class TokenizerProcess:
    """See the module's text. Thread-safe: calls wait for each other."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._asked_s = 0.0
        self._closed = False
        self._decode = msgspec.msgpack.Decoder(Answer).decode

    def __repr__(self) -> str:
        return f"TokenizerProcess({'not started' if self._process is None else self._process.pid})"

    def about(self, file: Path) -> AboutTokenizer:
        """What the tokenizer in a file is like. Raises :class:`RenderError`."""
        about = self._ask(Ask(str(file))).about
        if about is None:
            raise RenderError("the tokenizer's process gave no answer")
        return about

    def encode(self, file: Path, texts: Sequence[str]) -> list[bytes]:
        """The token ids of texts. Raises :class:`RenderError`."""
        tokens = self._ask(Ask(str(file), texts=list(texts))).tokens
        if tokens is None or len(tokens) != len(texts):
            raise RenderError("the tokenizer's process gave no answer")
        return tokens

    def text_of(self, file: Path, token: int) -> str:
        """The text of one token. Raises :class:`RenderError`."""
        return self._ask(Ask(str(file), token=token)).text

    def end_if_stuck(self) -> None:
        """End a process that has not answered for long; may be called on any thread, and does not wait."""
        process, asked_s = self._process, self._asked_s
        if process is not None and asked_s and time.monotonic() - asked_s > STUCK_S:
            process.kill()

    def close(self) -> None:
        """End the process. Calls under way and later ones fail."""
        self._closed = True
        process = self._process
        if process is not None:
            process.kill()
            process.wait()

    def _ask(self, ask: Ask) -> Answer:
        payload = msgspec.msgpack.encode(ask)
        with self._lock:
            process = self._running()
            assert process.stdin is not None
            assert process.stdout is not None
            self._asked_s = time.monotonic()
            try:
                write_frame(process.stdin, payload)
                answer = self._decode(read_frame(process.stdout))
            except (OSError, ValueError, msgspec.DecodeError) as error:
                self._end(process)
                raise RenderError("the tokenizer's process died") from error
            finally:
                self._asked_s = 0.0
        if answer.error:
            raise RenderError(answer.error)
        return answer

    def _running(self) -> "subprocess.Popen[bytes]":
        if self._closed:
            raise RenderError("the router ends")
        if self._process is None:
            command = [sys.executable, "-m", "kveik.router.tokenizer_server"]
            try:
                self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
            except OSError as error:
                raise RenderError(f"the tokenizer's process cannot be started: {error}") from error
        return self._process

    def _end(self, process: "subprocess.Popen[bytes]") -> None:
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):  # what was not written yet is for nobody
                    pipe.close()
        self._process = None

"""Asks a node's supervisor, and gives it orders."""

import socket
import time
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import msgspec

from kveik.errors import SuperviseError
from kveik.supervise.messages import Done, Order, ProcessView, StatusAnswer

_Told = TypeVar("_Told", StatusAnswer, Done)
_ANSWER_BYTES_MAX = 16 << 20
_POLL_S = 0.1


class ControlClient:
    """One supervisor at the socket ``path``; each call is a connection of its own.

    All calls raise :class:`SuperviseError`: nobody listens, no answer within ``deadline_s`` seconds, or a refusal.
    """

    def __init__(self, path: str, *, deadline_s: float = 10.0) -> None:
        self.path = path
        self._deadline_s = deadline_s

    def __repr__(self) -> str:
        return f"ControlClient({self.path})"

    def status(self) -> StatusAnswer:
        """All parts, as they are now."""
        return self._ask(Order(op="status"), StatusAnswer)

    def view(self, name: str) -> ProcessView:
        """One part."""
        for process in self.status().processes:
            if process.name == name:
                return process
        raise SuperviseError(f"the supervisor at {self.path} keeps no {name!r}")

    def start(self, name: str) -> Done:
        """Start a part that stopped, failed or waits."""
        return self._order(Order(op="start", name=name))

    def stop(self, name: str, grace_s: float | None = None) -> Done:
        """Have a part end within ``grace_s`` seconds (its own grace if None) and stay down."""
        return self._order(Order(op="stop", name=name, grace_s=grace_s))

    def restart(
        self,
        name: str,
        why: str,
        *,
        grace_s: float | None = None,
        settings: Mapping[str, Any] | None = None,
        config: str = "",
    ) -> Done:
        """End a part's whole group (``grace_s`` 0: kill it at once) and start it, perhaps described anew."""
        return self._order(
            Order(op="restart", name=name, why=why, grace_s=grace_s, settings=dict(settings or {}), config=config)
        )

    def hold(self, name: str, why: str) -> Done:
        """Ask others to keep their hands off a part."""
        return self._order(Order(op="hold", name=name, why=why))

    def release(self, name: str) -> Done:
        """Let others touch it again."""
        return self._order(Order(op="release", name=name))

    def apply(self, config: str) -> Done:
        """Change what differs from that file; ``told`` says what that is."""
        return self._order(Order(op="apply", config=config))

    def down(self, *, now: bool = False) -> Done:
        """Have everything end, in order, the supervisor last; ``now``: at once, with all requests."""
        return self._order(Order(op="down", grace_s=0.0 if now else None))

    def wait(self, name: str, wanted: Callable[[ProcessView], bool], timeout_s: float) -> ProcessView:
        """The part as soon as it is as wanted. Raises :class:`SuperviseError` after ``timeout_s``, with its state."""
        until_s = time.monotonic() + timeout_s
        while True:
            view = self.view(name)
            if wanted(view):
                return view
            if time.monotonic() > until_s:
                raise SuperviseError(
                    f"{name} is {view.state} after {timeout_s:g} s: {view.why or 'no reason is known'}"
                )
            time.sleep(_POLL_S)

    def _order(self, order: Order) -> Done:
        done = self._ask(order, Done)
        if done.error:
            raise SuperviseError(done.error)
        return done

    def _ask(self, order: Order, kind: type[_Told]) -> _Told:
        raw = self._exchange(msgspec.json.encode(order) + b"\n")
        try:
            return msgspec.json.decode(raw, type=kind)
        except msgspec.DecodeError as error:
            raise SuperviseError(_refusal(raw) or f"{self.path}: an answer that this version does not know") from error

    def _exchange(self, line: bytes) -> bytes:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
            sock.settimeout(self._deadline_s)
            try:
                sock.connect(self.path)
                sock.sendall(line)
                with sock.makefile("rb") as answers:
                    raw = answers.readline(_ANSWER_BYTES_MAX)
            except TimeoutError as error:
                raise SuperviseError(
                    f"the supervisor at {self.path} gave no answer within {self._deadline_s:g} s"
                ) from error
            except OSError as error:
                raise SuperviseError(f"no supervisor answers at {self.path}: {error.strerror or error}") from error
        if not raw.endswith(b"\n"):
            ended = SuperviseError(f"the supervisor at {self.path} ended in the middle of an answer")
            raise ended from ConnectionResetError("no whole answer")
        return raw


def _refusal(raw: bytes) -> str:
    """Why there is no status; empty if that is not what was answered."""
    try:
        return msgspec.json.decode(raw, type=Done).error
    except msgspec.DecodeError:
        return ""

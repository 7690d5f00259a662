"""One call at a time on a thread of its own: begun, not waited for, and taken when it is done.

An engine that hangs holds whoever asks it. So the watchdog's own loop never asks; it sends an errand, looks how
old it is, and sends no second one while the first is away.
"""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Generic, TypeVar

Result = TypeVar("Result")


class Errand(Generic[Result]):
    """At most one call under way; ``name`` is that of its thread. For use by one thread."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._future: Future[Result] | None = None
        self._begun_s = 0.0

    @property
    def away(self) -> bool:
        """Whether a call is under way, or its result has not been taken."""
        return self._future is not None

    def age_s(self, now_s: float) -> float:
        """For how long the call has been under way; 0 if there is none."""
        return now_s - self._begun_s if self.away else 0.0

    def begin(self, call: Callable[[], Result], now_s: float) -> None:
        """Start a call. There must be none."""
        assert not self.away
        future = self._future = Future()
        self._begun_s = now_s
        threading.Thread(target=_carry_out, args=(call, future), name=self._name, daemon=True).start()

    def take(self) -> Result | None:
        """The result if the call has ended, else None. Raises what the call raised."""
        future = self._future
        if future is None or not future.done():
            return None
        self._future = None
        return future.result()

    def abandon(self) -> None:
        """Forget the call under way: nobody will take its result. Its thread ends by itself."""
        self._future = None


def _carry_out(call: Callable[[], Result], future: "Future[Result]") -> None:
    try:
        result = call()
    except BaseException as error:  # noqa: BLE001 (raised again by take)
        future.set_exception(error)
    else:
        future.set_result(result)

"""Why a slot must not be reused yet, although nobody holds it."""

from collections.abc import Callable
from dataclasses import dataclass

from kveik.store.writer import Writer

#: A writer that cannot be seen (another pid namespace) and lost its connection is trusted to
#: have stopped writing after this long.
UNSEEN_WRITER_S = 300.0


@dataclass(slots=True)
class Quarantine:
    """A slot may still be written: by an engine (``writer``) or by a store (``running``)."""

    since_s: float
    writer: Writer | None = None
    running: Callable[[], bool] | None = None

    def over(self, now_s: float) -> bool:
        """Whether nobody can write any more."""
        if self.running is not None:
            return not self.running()
        if self.writer is None:
            return True
        if self.writer.pid == 0:
            return now_s - self.since_s > UNSEEN_WRITER_S
        return not self.writer.may_still_write()

"""What can be made to go wrong with a simulated engine while it runs."""

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from kveik.errors import ConfigError

Death = Literal["rst", "fin", "mid_line"]
_Status = Annotated[int, Meta(ge=200, le=599)]
_Events = Annotated[int, Meta(ge=-1)]


class Faults(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The switches of ``/sim``. The defaults are a good engine; -1 and 0 mean off unless said otherwise.

    These hit requests for tokens (completions, chats, responses, messages, embeddings), each
    ``every``-th of them, and of these only such whose body contains ``containing``:

    - ``first_byte_delay_s``: nothing is sent for that long, then all goes on as usual.
    - ``stall_after_chunks``: after so many events of a stream (half of a whole answer) no more
      comes, and the connection stays open.
    - ``die_after_chunks``: after so many, the connection ends by ``die_by``: ``rst``, ``fin``
      (cleanly, but with neither ``[DONE]`` nor the last chunk of HTTP) or ``mid_line`` (the same
      in the middle of a line).
    - ``close_unanswered``: the connection is closed before any byte of an answer.
    - ``status`` with ``status_body`` and ``status_headers``: this is the answer.
    - ``crash``: the whole engine dies, as after kill -9.

    The others hit the engine as a whole:

    - ``hang``: no token is made any more and no answer begins; ``/health`` stays 200.
    - ``health_status``: the answer of ``/health``.
    - ``never_read``: connections are accepted and nothing is read from them.
    - ``read_bytes_s``: connections are read at this rate only.
    - ``refuse``: nobody listens on the port any more; idle connections are closed.
    - ``keep_alive_s``: idle connections are closed after so long; -1: as set at the start; 0: at once
      after each answer, without having said so.
    """

    every: Annotated[int, Meta(ge=1)] = 1
    containing: str = ""
    first_byte_delay_s: Annotated[float, Meta(ge=0)] = 0.0
    stall_after_chunks: _Events = -1
    die_after_chunks: _Events = -1
    die_by: Death = "rst"
    close_unanswered: bool = False
    status: Annotated[int, Meta(ge=0, le=599)] = 0
    status_body: str | dict[str, Any] | list[Any] = ""
    status_headers: dict[str, str] = {}
    crash: bool = False
    hang: bool = False
    health_status: _Status = 200
    never_read: bool = False
    read_bytes_s: Annotated[int, Meta(ge=0)] = 0
    refuse: bool = False
    keep_alive_s: Annotated[float, Meta(ge=-1)] = -1.0

    def body(self) -> bytes:
        """The body of the answer with ``status``."""
        body = self.status_body
        return body.encode() if isinstance(body, str) else msgspec.json.encode(body)


NO_FAULTS = Faults()


def changed(faults: Faults, changes: dict[str, Any]) -> Faults:
    """The switches with some of them changed; ``{"reset": true}`` starts from the defaults.

    Raises :class:`ConfigError` for an unknown switch or a value of the wrong type or out of range.
    """
    given = dict(changes)
    base = NO_FAULTS if given.pop("reset", False) is True else faults
    try:
        result = msgspec.convert({**msgspec.structs.asdict(base), **given}, Faults)
    except msgspec.ValidationError as error:
        raise ConfigError(f"faults: {error}") from error
    if 0 < result.status < 200:
        raise ConfigError(f"faults: status is {result.status}, expected 200 to 599, or 0 for none")
    return NO_FAULTS if result == NO_FAULTS else result

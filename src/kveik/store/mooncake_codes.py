"""What Mooncake's numbers mean for one key. Pure.

Numbers and what follows from each were seen with mooncake-transfer-engine 0.3.13: the names are
those of its ``ErrorCode``.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

from kveik.store.base import MISS, BlockResult, Status, failed


@dataclass(frozen=True, slots=True)
class Meaning:
    """Of one number: the contract's reason and words. ``late``: bytes may move although the call has ended."""

    reason: str
    words: str
    late: bool = False


NO_ROOM = -200
INVALID_PARAMS = -600
NOT_FOUND = -704
#: Of a put: somebody has stored the key, or is storing it.
THERE_ALREADY = -705
#: Ours, of a put that moved fewer bytes than it should.
INCOMPLETE = -1
#: A key that is not there for a reader, for whatever reason.
_ABSENT = {
    -703: "it is still being written",
    NOT_FOUND: "not found",
    -707: "its copies are not ready",
}
_MEANINGS = {
    -10: Meaning("io_error", "the library failed"),
    NO_ROOM: Meaning("no_room", "no segment has room for it now"),
    INVALID_PARAMS: Meaning("too_large", "the buffer is smaller than what is stored"),
    INCOMPLETE: Meaning("io_error", "not all bytes were moved", late=True),
    THERE_ALREADY: Meaning("busy", "another writer holds the key"),
    -706: Meaning("busy", "somebody reads it"),
    -800: Meaning("unavailable", "the transfer failed: its owner does not answer", late=True),
    -900: Meaning("unavailable", "the master does not answer", late=True),
    -901: Meaning("timeout", "the master did not answer in time", late=True),
}
_UNKNOWN = Meaning("io_error", "unknown", late=True)


def meaning_of(code: int) -> Meaning:
    """What a negative number stands for. An unknown one may leave bytes on the move, for all we know."""
    return _MEANINGS.get(code, _UNKNOWN)


def failure(code: int, still_running: Callable[[], bool]) -> BlockResult:
    """The result of a key with a negative number; ``still_running`` tells of late bytes, if it may have any."""
    meaning = meaning_of(code)
    result = failed(meaning.reason, f"Mooncake answered {code}: {meaning.words}")
    return replace(result, still_running=still_running) if meaning.late else result


def absent(code: int) -> bool:
    """Whether a number says that the key is not there."""
    return code in _ABSENT


def of_removal(code: int) -> BlockResult:
    """The result of a forced removal."""
    if code == 0:
        return BlockResult(Status.DELETED)
    return MISS if absent(code) else failure(code, still_running=lambda: False)


def moves_late(codes: list[int]) -> bool:
    """Whether any number of a transfer may leave bytes on the move."""
    return any(code < 0 and not absent(code) and meaning_of(code).late for code in codes)

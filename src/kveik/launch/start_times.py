"""How long parts took to start, kept from start to start: what an estimate is made of."""

import statistics
from collections.abc import Mapping
from pathlib import Path

import msgspec

#: So many starts of one part are remembered.
KEPT = 5


class StartTimes:
    """The last starts of each part, in seconds, in a small file. One that is damaged counts as empty."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._seconds = _read(file)

    def __repr__(self) -> str:
        return f"StartTimes({self._file}, {len(self._seconds)} parts)"

    def estimate(self, part: str) -> float | None:
        """What the next start of a part may take: the median of the last ones, None if there was none."""
        known = self._seconds.get(part)
        return statistics.median(known) if known else None

    def add(self, part: str, seconds: float) -> None:
        """Remember one start, at once. A file that cannot be written is no trouble: only the estimate suffers."""
        known = [*self._seconds.get(part, ()), round(seconds, 1)][-KEPT:]
        self._seconds = {**self._seconds, part: known}
        partial = self._file.with_name(f"{self._file.name}.part")
        try:
            partial.write_bytes(msgspec.json.encode(self._seconds))
            partial.replace(self._file)
        except OSError:
            pass  # see above


def _read(file: Path) -> Mapping[str, list[float]]:
    try:
        return msgspec.json.decode(file.read_bytes(), type=dict[str, list[float]])
    except (OSError, msgspec.DecodeError):
        return {}

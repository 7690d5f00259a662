"""How far the clock of an HTTP server is from ours, by the ``Date`` of its answer."""

import http.client
import time
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from urllib.parse import urlsplit

#: A Date has whole seconds.
_STEP_S = 1.0


@dataclass(frozen=True, slots=True)
class ClockOffset:
    """A server's clock is between ``least_s`` and ``most_s`` ahead of ours (behind where negative)."""

    least_s: float
    most_s: float

    @property
    def certain_s(self) -> float:
        """By how much it is off at least; 0 if it may be right."""
        return max(0.0, self.least_s, -self.most_s)


def offset_of(date: str, sent_s: float, received_s: float) -> ClockOffset | None:
    """From the header's text, and our wall clock before and after. None for what is no date."""
    try:
        told_s = parsedate_to_datetime(date).timestamp()
    except (ValueError, TypeError, OverflowError):
        return None
    return ClockOffset(told_s - received_s, told_s + _STEP_S - sent_s)


def ask_time(url: str, deadline_s: float, path: str = "/health") -> ClockOffset | None:
    """Ask a server; None where it does not answer, or does not tell the time."""
    parts = urlsplit(url if "//" in url else f"http://{url}")
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    connection = kind(parts.netloc, timeout=deadline_s)
    try:
        sent_s = time.time()
        connection.request("GET", path)
        response = connection.getresponse()
        received_s = time.time()
        date = response.getheader("Date", "")
        response.read()
    except (OSError, http.client.HTTPException, ValueError):
        return None
    finally:
        connection.close()
    return offset_of(date, sent_s, received_s)

"""The processes of an engine on this machine that somebody else started: who listens on its port, and their children.

Only processes that bear vLLM's titles are taken for an engine's. What else listens may be a proxy before a container,
which rests while the engine works.
"""

import ipaddress
import socket
import urllib.parse

import psutil

from kveik.engine.process import ports_listened_at
from kveik.watchdog.processes import computes

#: Connections of the whole machine are listed for it, which takes a while on a large one.
SEARCH_PERIOD_S = 10.0


class Neighbour:
    """Looks for the processes behind ``url``, at most once in SEARCH_PERIOD_S."""

    def __init__(self, url: str) -> None:
        parts = urllib.parse.urlsplit(url if "//" in url else f"http://{url}")
        self._port = (parts.port or 80) if is_local(parts.hostname or "") else 0
        self._pids: tuple[int, ...] | None = None
        self._due_s = float("-inf")

    def pids(self, now_s: float) -> tuple[int, ...] | None:
        """The engine's processes, leader first; None where it is elsewhere, or not to be seen."""
        if self._port and now_s >= self._due_s:
            self._due_s = now_s + SEARCH_PERIOD_S
            self._pids = engine_at(self._port)
        return self._pids


def is_local(host: str) -> bool:
    """Whether that is an address of this machine; names are not looked up, but for localhost."""
    try:
        address = ipaddress.ip_address("127.0.0.1" if host == "localhost" else host)
    except ValueError:
        return False
    own = {one.address for found in psutil.net_if_addrs().values() for one in found if one.family == socket.AF_INET}
    return address.is_loopback or str(address) in own


def engine_at(port: int) -> tuple[int, ...] | None:
    """The process that listens on a port and its children, if one of them is of a vLLM that computes."""
    try:
        found = {pid for open_port, pid in ports_listened_at() if open_port == port and pid}
        groups = [(pid, *(child.pid for child in psutil.Process(pid).children(recursive=True))) for pid in found]
    except psutil.Error:
        return None
    # A socket may be handed down: the process with most of the others below it is the leader.
    groups.sort(key=len, reverse=True)
    return groups[0] if groups and any(computes(pid) for pid in groups[0]) else None

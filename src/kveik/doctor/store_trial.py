"""Tries a store that the settings name as an agent would use it: open, put a block, read it back, compare, delete.

It joins the store as one more client, beside the agent, and lends it no memory.
"""

import contextlib
import os
import secrets
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from kveik.agent.tiers import KINDS, TierContext
from kveik.clock import SYSTEM_CLOCK, Clock, Deadline
from kveik.config import AgentSettings, StoreSettings
from kveik.doctor.store_facts import StoreFacts
from kveik.errors import ConfigError, DoctorError, KveikError
from kveik.store.base import READY, BlockStore
from kveik.store.canary import LARGE_BYTES, SMALL_BYTES
from kveik.store.filesystem import FilesystemStore
from kveik.store.filesystem_options import FilesystemOptions
from kveik.store.probe_round import Kept, ProbeRound
from kveik.store.probe_verdict import Finding, Verdict

#: How long a store may take to be joined, for its address to answer, and for each call.
OPEN_S, ANSWER_S, CALL_S = 20.0, 3.0, 5.0
_POLL_S = 0.05
_NO_FOLDER = Finding(Verdict.UNKNOWN, "the folder is not there yet: the agent makes it, unless a mount is missing")


@dataclass(frozen=True, slots=True)
class TriedStore:
    """One store: its name, where it is, and how it is opened."""

    name: str
    address: str
    open: Callable[[], BlockStore]


def stores_of(agent: AgentSettings, stores: StoreSettings) -> list[TriedStore]:
    """The stores that the settings name, nearest first."""
    addresses = {
        "mooncake": stores.mooncake.master,
        "yuanrong": stores.yuanrong.worker,
        "redis": stores.redis.address,
        "filesystem": agent.filesystem,
    }
    # As a client only: memory that it lent would be gone from the store again in a moment.
    visitor = replace(stores, mooncake=replace(stores.mooncake, segment_bytes=0))
    context = TierContext(replace(agent, tier_deadline_s=CALL_S), visitor, memoryview(b""))
    return [
        TriedStore(name, addresses[name], _opener(name, context))
        for name, kind in KINDS.items()
        if kind.wanted(agent, stores)
    ]


def _opener(name: str, context: TierContext) -> Callable[[], BlockStore]:
    if name == "filesystem":
        return lambda: _open_folder(context.agent)
    return lambda: KINDS[name].open(context)


def _open_folder(settings: AgentSettings) -> BlockStore:
    """The folder without counting or sweeping, which are the agents' business. Raises :class:`StoreError`."""
    options = FilesystemOptions.from_settings(settings)
    return FilesystemStore(replace(options, limit_bytes=0, sweep_interval_s=0.0))


def try_store(tried: TriedStore, open_s: float = OPEN_S, clock: Clock = SYSTEM_CLOCK) -> StoreFacts:
    """Everything about one store. What does not answer in time is told so; nothing stays behind in it."""
    start_s = clock.monotonic()
    facts = StoreFacts(tried.name, tried.address, refused=why_refused(tried.address))
    if facts.refused:
        return facts
    if tried.name == "filesystem" and not Path(tried.address).is_dir():
        return replace(facts, found=_NO_FOLDER)
    try:
        store = tried.open()
    except ConfigError as error:
        return replace(facts, settings=str(error))
    except KveikError as error:
        return replace(facts, closed=str(error))
    with contextlib.closing(store):
        closed = _why_closed(store, Deadline.after(open_s, clock))
        if closed:
            return replace(facts, closed=closed)
        found = put_and_read(store, clock)
    return replace(facts, found=found, seconds=clock.monotonic() - start_s)


def opened(tried: TriedStore, open_s: float = OPEN_S, clock: Clock = SYSTEM_CLOCK) -> BlockStore:
    """The store, open. Raises :class:`DoctorError` that says why it cannot be used."""
    if refused := why_refused(tried.address):
        raise DoctorError(f"nobody answers at {tried.address}: {refused}")
    if tried.name == "filesystem" and not Path(tried.address).is_dir():
        raise DoctorError(_NO_FOLDER.detail)
    try:
        store = tried.open()
    except KveikError as error:
        raise DoctorError(str(error)) from error
    if closed := _why_closed(store, Deadline.after(open_s, clock)):
        store.close()
        raise DoctorError(closed)
    return store


def _why_closed(store: BlockStore, deadline: Deadline) -> str:
    """Why it is not open by then; empty as soon as it is."""
    while True:
        stats = store.stats()
        if stats.state == READY:
            return ""
        if deadline.passed:
            return "; ".join(stats.notes) or f"it was {stats.state}"
        threading.Event().wait(_POLL_S)


def put_and_read(store: BlockStore, clock: Clock = SYSTEM_CLOCK) -> Finding:
    """Put a small and a large block, read both back, compare, delete: as the agent's probes do it."""
    owner = f"doctor/{secrets.token_hex(8)}/{store.name}"
    turn = ProbeRound(store, owner, Kept(), Deadline.after(2 * CALL_S, clock), clock)
    found = turn.run((SMALL_BYTES, LARGE_BYTES))
    if found.verdict is not Verdict.SLOW:
        turn.clear()
    return found


def why_refused(address: str, answer_s: float = ANSWER_S) -> str:
    """Why nobody answers at ``HOST:PORT`` or at a Unix socket; empty if somebody does, or if it is a folder."""
    if "/" in address:
        return "" if Path(address).is_dir() or not address.endswith(".sock") else _why_no_socket(address, answer_s)
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit():
        return ""
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=answer_s).close()
    except OSError as error:
        return error.strerror or os.strerror(error.errno or 0) if error.errno else str(error)
    return ""


def _why_no_socket(path: str, answer_s: float) -> str:
    with socket.socket(socket.AF_UNIX) as asked:
        asked.settimeout(answer_s)
        try:
            asked.connect(path)
        except OSError as error:
            return error.strerror or str(error)
    return ""

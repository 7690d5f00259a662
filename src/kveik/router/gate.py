"""The gate: one decision about each request before anything is done for it. Pure; time is passed in.

Who sends it (its key), whether the key may do that now (rates), whether there is a place (at once,
or after waiting), and later, when the body is known, whether the key may use that model.

A request that got a :class:`Ticket` holds a place until ``leave``, which must be called once it
has ended in whatever way; calling it twice does no harm.
"""

import math
import re
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fnmatch import translate
from typing import Final

from kveik.config import RouterSettings
from kveik.errors import ConfigError
from kveik.router.api_keys import ANYONE, ApiKeys
from kveik.router.cache_salt import with_tenant_salt
from kveik.router.http1 import error_body
from kveik.router.keys_file import ApiKey
from kveik.router.limits import KeyQueue, Place, Places, Standing, TokenBucket

Header = tuple[bytes, bytes]
_OUTSIDE: Final = Standing.OUTSIDE
_WAITING: Final = Standing.WAITING

#: How often the keys file is looked at.
KEYS_LOOK_S: Final = 0.5


@dataclass(frozen=True, slots=True)
class Refused:
    """A request that goes no further: what the client gets. ``reason`` is a short word, for metrics."""

    reason: str
    status: int
    body: bytes
    headers: tuple[Header, ...] = ()


class KeyState:
    """A key, and what its requests use up now. ``key`` changes when the keys file does; the rest goes on."""

    __slots__ = ("_models", "key", "queue", "requests", "salt", "tokens")

    def __init__(self, key: ApiKey, salt: str, concurrent: int, now_s: float) -> None:
        self.queue: KeyQueue[Ticket] = KeyQueue(key.name)
        self.requests: TokenBucket | None = None
        self.tokens: TokenBucket | None = None
        self.apply(key, salt, concurrent, now_s)

    def apply(self, key: ApiKey, salt: str, concurrent: int, now_s: float) -> None:
        """Take over a key's (new) limits without forgetting what has been used."""
        self.key = key
        self.salt = salt
        self.queue.limit = key.concurrent or concurrent
        self.requests = _bucket(self.requests, key.requests_per_min, now_s)
        self.tokens = _bucket(self.tokens, key.tokens_per_min, now_s)
        self._models = re.compile("|".join(map(translate, key.models))) if key.models else None

    def may_use(self, model: str) -> bool:
        """Whether the key allows this model."""
        return self._models is None or self._models.match(model) is not None


class Ticket(Place):
    """One admitted or waiting request.

    ``on_turn`` is called once if it waits: with None when its turn has come, with the refusal if
    it waited too long or was crowded out.
    """

    __slots__ = ("booked_tokens", "ended", "on_turn", "state")

    def __init__(self, state: KeyState) -> None:
        self.queue = state.queue  # all that Place begins with: one is made for each request
        self.standing = _OUTSIDE
        self.entered_s = 0.0
        self.state = state
        self.booked_tokens = 0
        self.ended = False
        self.on_turn: Callable[[Refused | None], None] = _nobody_waits

    @property
    def waits(self) -> bool:
        """Whether its turn has not come yet."""
        return self.standing is _WAITING

    @property
    def key_name(self) -> str:
        """The key's name; ``anyone`` where none is asked for."""
        return self.state.key.name


class Gate:
    """All keys and all places of one router."""

    def __init__(self, settings: RouterSettings, keys: ApiKeys | None, now_s: float) -> None:
        """``keys`` None: nobody is asked for a key, and all clients share the limits.

        Raises :class:`ConfigError` where tenants are to be isolated that no key tells apart.
        """
        if settings.tenant_isolation and keys is None:
            raise ConfigError("router.tenant_isolation needs router.keys_file: without keys all clients are one tenant")
        self._settings = settings
        self._keys = keys
        self.places: Places[Ticket] = Places(settings.concurrent_max, settings.queue_max, settings.queue_timeout_s)
        self.refusals: dict[str, int] = {}
        self._look_at_s = now_s
        self._called: deque[Ticket] = deque()
        self._calling = False
        self._states: dict[str, KeyState] = {}
        self._anyone = self._state_of(ANYONE, now_s) if keys is None else None

    def __repr__(self) -> str:
        return f"Gate(keys={self._keys!r}, places={self.places!r}, refusals={self.refusals})"

    def identify(self, credentials: bytes | None, now_s: float) -> KeyState | Refused:
        """Who presents these credentials: the value of ``Authorization``, or else that of ``x-api-key``.

        For what needs a key but no place, such as the list of models.
        """
        if self._keys is None:
            assert self._anyone is not None
            return self._anyone
        key = self._keys.find(credentials)
        if key is None:
            return self._refuse("no_key" if credentials is None else "wrong_key")
        state = self._states.get(key.name)
        return state if state is not None and state.key is key else self._state_of(key, now_s)

    def enter(self, credentials: bytes | None, now_s: float) -> Ticket | Refused:
        """Decide on one request. A ticket that ``waits`` must get its ``on_turn`` before the loop goes on."""
        state = self._anyone or self.identify(credentials, now_s)
        if isinstance(state, Refused):
            return state
        if state.requests is not None or state.tokens is not None:
            refused = self._rates(state, now_s)
            if refused is not None:
                return refused
        ticket = Ticket(state)
        crowded_out = self.places.enter(ticket, now_s)
        if crowded_out is not None:
            self._turn_away(crowded_out, "crowded_out")
        if ticket.standing is _OUTSIDE:
            return self._refuse("queue_full")
        return ticket

    def allow(self, ticket: Ticket, model: str, tokens: int, now_s: float) -> Refused | None:
        """Decide again, now that the body is known; ``tokens`` (an estimate of the prompt's) are booked.

        The ticket stays in force: ``leave`` it in either case.
        """
        state = ticket.state
        if not state.may_use(model):
            return self._refuse("model_not_allowed")
        if state.tokens is not None:
            state.tokens.spend(tokens, now_s)
            ticket.booked_tokens += tokens
        return None

    def leave(self, ticket: Ticket, now_s: float, used_tokens: int | None = 0) -> None:
        """The request has ended: its place goes to the next one, and its tokens are settled.

        ``used_tokens`` are prompt and completion as the engine counted them; 0 if nothing was computed.
        None where the engine did not say: what was booked stands, or streams without usage would be free.
        """
        if ticket.ended:
            return
        ticket.ended = True
        tokens = ticket.state.tokens
        if tokens is not None and used_tokens is not None:
            tokens.spend(used_tokens - ticket.booked_tokens, now_s)
        admitted = self.places.leave(ticket)
        if admitted:
            self._call_in(admitted)

    def tick(self, now_s: float) -> None:
        """Turn away who has waited too long, and follow the keys file. Call it a few times a second."""
        for late in self.places.expired(now_s):
            self._turn_away(late, "queue_timeout")
        if self._keys is not None and now_s >= self._look_at_s:
            self._look_at_s = now_s + KEYS_LOOK_S
            if self._keys.reload_if_changed():
                self._follow(self._keys.by_name, now_s)
        self._call_in(self.places.let_in())

    def body_for_engine(self, ticket: Ticket, body: bytes) -> bytes | Refused:
        """The body as the engine gets it: with its tenant's ``cache_salt`` where isolation is on.

        Forms with files (audio) have no such member and pass as they are; any other body must be a
        JSON object then, because one that only an engine can read could name another tenant's salt.
        """
        if not self._settings.tenant_isolation or not body or body.startswith((b"--", b"\r\n--")):
            return body
        try:
            return with_tenant_salt(body, ticket.state.salt)
        except ValueError as error:
            return self._refuse("bad_body", str(error))

    def _follow(self, in_force: Mapping[str, ApiKey], now_s: float) -> None:
        for name, state in list(self._states.items()):
            key = in_force.get(name)
            if key is not None:
                self._state_of(key, now_s)
            elif not state.queue.inside and not state.queue.waiting:
                del self._states[name]

    def _rates(self, state: KeyState, now_s: float) -> Refused | None:
        if state.tokens is not None and state.tokens.level(now_s) < 1.0:
            wait_s = state.tokens.wait_s(1.0, now_s)
            return self._refuse("token_rate", f"{state.key.tokens_per_min} tokens a minute", wait_s)
        if state.requests is not None:
            wait_s = state.requests.take(1.0, now_s)
            if wait_s:
                return self._refuse("request_rate", f"{state.key.requests_per_min} requests a minute", wait_s)
        return None

    def _state_of(self, key: ApiKey, now_s: float) -> KeyState:
        salt = self._keys.cache_salt(key.tenant_name) if self._keys is not None else ANYONE.name
        concurrent = self._settings.key_concurrent_max if self._keys is not None else 0
        state = self._states.get(key.name)
        if state is None:
            state = self._states[key.name] = KeyState(key, salt, concurrent, now_s)
        else:
            state.apply(key, salt, concurrent, now_s)
        return state

    def _call_in(self, admitted: list[Ticket]) -> None:
        """Tell them that it is their turn: one after the other, also if one leaves at once and so lets in the next."""
        self._called.extend(admitted)
        if self._calling:
            return
        self._calling = True
        try:
            while self._called:
                ticket = self._called.popleft()
                if not ticket.ended:
                    ticket.on_turn(None)
        finally:
            self._calling = False

    def _turn_away(self, ticket: Ticket, reason: str) -> None:
        ticket.on_turn(self._refuse(reason))

    def _refuse(self, reason: str, detail: str = "", wait_s: float = 0.0) -> Refused:
        self.refusals[reason] = self.refusals.get(reason, 0) + 1
        row = REFUSALS[reason]
        body = error_body(row.status, row.message.format(detail=detail), code=row.code)
        retry_after_s = max(math.ceil(wait_s), row.retry_after_s)
        headers: tuple[Header, ...] = ((b"retry-after", b"%d" % retry_after_s),) if retry_after_s else ()
        if row.status == 401:
            headers = (*headers, (b"www-authenticate", b"Bearer"))
        return Refused(reason, row.status, body, headers)


@dataclass(frozen=True, slots=True)
class RefusalRow:
    """One way to be refused, as the client sees it."""

    status: int
    code: str
    message: str
    retry_after_s: int = 0


#: Every reason. 429 is about one key, so that clients slow down; 503 is about the router as a whole.
REFUSALS: Final = {
    "no_key": RefusalRow(401, "missing_api_key", "No API key: send it as 'Authorization: Bearer KEY'."),
    "wrong_key": RefusalRow(401, "invalid_api_key", "This API key is not valid (here, or any more)."),
    "model_not_allowed": RefusalRow(403, "model_not_allowed", "This API key may not use that model."),
    "request_rate": RefusalRow(429, "rate_limit_exceeded", "This API key has reached its limit of {detail}.", 1),
    "token_rate": RefusalRow(429, "rate_limit_exceeded", "This API key has reached its limit of {detail}.", 1),
    "queue_full": RefusalRow(503, "queue_full", "All places are taken and the queue is full; try again later.", 1),
    "queue_timeout": RefusalRow(503, "queue_timeout", "No place became free in time; try again later.", 1),
    "crowded_out": RefusalRow(
        503, "queue_full", "The queue is full, and this API key has most of the requests in it.", 1
    ),
    "bad_body": RefusalRow(400, "invalid_body", "The request cannot be kept apart from other tenants': {detail}."),
}


def _bucket(old: TokenBucket | None, per_min: int, now_s: float) -> TokenBucket | None:
    if per_min == 0:
        return None
    return TokenBucket(per_min, now_s) if old is None else old.moved_to(per_min, now_s)


def _nobody_waits(_: Refused | None) -> None:
    """The ``on_turn`` of a ticket that was let in at once."""

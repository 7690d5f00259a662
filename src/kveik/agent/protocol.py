"""Messages between an engine (client) and the node's agent, over a Unix stream socket.

Framing: 4 bytes little-endian length, then one MessagePack map with a ``type`` tag. Every
request carries an ``id`` chosen by the client, and gets exactly one answer with that ``id``;
answers come in the order in which the agent finished, so a client may have several requests
under way. KV bytes never travel here: the answer to :class:`Hello` passes a file descriptor of
the arena (``SCM_RIGHTS``), and after that both sides name slots by their offset.

A malformed or unknown message gets :class:`Refused` and the connection is closed.

Life of a block being written::

    Reserve(keys) -> Reserved(lease, per key: slot offset, or why not)
    client copies payloads into the slots and digests them
    Commit(lease, digests) -> Committed(per key)       or      Release(lease) -> Done

Life of a block being read::

    Read(keys) -> Granted(lease, per key: slot offset, frame bytes, place, or why not)
    client copies payloads out of the slots, verifying them (see below)
    Release(lease) -> Done

Fields that came later have defaults and are left out of account by who does not know them, so agents and engines of
different age understand each other: without rates an engine loads whatever is there. A message that came later is
sent only to an agent whose :class:`Welcome` names it. What changes the meaning of a message needs another version,
and both sides refuse that in words.

Leases end with their connection. The agent may also take back a *read* lease that is older
than it is willing to wait, so a reader must compare the slot's header page before and after
its copy and treat a change as a failed read (a slot's header is cleared before its reuse).
A *reserved* slot is never reused before its lease ended or its writer's process is gone.
"""

import msgspec

from kveik.agent.funnel import KnownNamespace, RequestFunnel

PROTOCOL_VERSION = 1
MAX_MESSAGE_BYTES = 16 << 20

#: Places in :class:`Located` and :class:`Grant`: 0 absent, 1 the arena, 2 and up the lower tiers in order.
ABSENT = 0
ARENA = 1

#: Messages that came after the first agents of this version: they do not know them, and say so by not naming them.
LATER_MESSAGES = ("TellRequests", "FindRequests")


class Message(msgspec.Struct, frozen=True, tag_field="type", tag=True):
    """Base of all messages."""

    id: int


class Hello(Message, frozen=True):
    """First message of a connection. ``facts`` may be empty (tools); ``role`` is for people.

    ``connection`` is a random number chosen by the client that names this connection in the
    records of slots it writes, see :class:`Settled`; 0: none.
    """

    version: int
    role: str
    pid: int
    connection: int = 0
    label: str = ""
    facts: dict[str, str] = {}


class Welcome(Message, frozen=True):
    """Answer to Hello; the arena's file descriptor comes with it.

    ``places`` names the tiers by place (``places[1]`` is the arena). ``notes`` are things that a
    person should read in the engine's log, for example how this engine's namespace differs from
    another engine's of the same label. ``also`` names the later messages that this agent takes.
    """

    version: int
    agent_id: str
    arena_bytes: int
    places: list[str]
    notes: list[str]
    also: list[str] = []


class TierGain(msgspec.Struct, frozen=True):
    """What loads from one tier were worth to an engine.

    ``saved_s``: computing that they made unnecessary, less the time they took; ``lost_s``: where that was negative.
    """

    tokens: int = 0
    saved_s: float = 0.0
    lost_s: float = 0.0


class EngineRates(msgspec.Struct, frozen=True):
    """What an engine learned, for people: they ask the agent.

    ``prefill`` are seconds for a step, for a token, and for a token and each that it attends to; ``prefill_sigma`` is
    the standard deviation of the logarithm of seen over expected. ``step_tokens`` is how many tokens one step computes
    at most, ``token_bytes`` how many bytes of all ranks a token's blocks have. ``path`` are seconds for a load and for
    each of its bytes from the arena. ``gains`` are by name of the tier, since the engine told them last.
    """

    prefill: list[float] = []
    prefill_sigma: float = 0.0
    prefill_steps: int = 0
    step_tokens: int = 0
    token_bytes: float = 0.0
    path: list[float] = []
    path_sigma: float = 0.0
    gains: dict[str, TierGain] = {}


class Lookup(Message, frozen=True):
    """Which blocks are there for all of ``ranks``? ``parts`` is a list of (group, block hashes).

    ``engine`` comes along now and then.
    """

    namespace: bytes
    ranks: list[int]
    parts: list[tuple[int, list[bytes]]]
    deadline_s: float
    engine: EngineRates | None = None


class TierRate(msgspec.Struct, frozen=True, array_like=True):
    """How fast a lower tier is: a read of ``n`` bytes is expected to take ``fixed_s + n * byte_s`` seconds.

    ``sigma`` is the standard deviation of the logarithm of seen over expected. ``waiting_bytes`` are asked for and not
    there yet, by any engine of this node; ``age_s`` is how long ago the tier was timed last.
    """

    place: int
    fixed_s: float
    byte_s: float
    sigma: float
    samples: int
    age_s: float = 0.0
    waiting_bytes: int = 0


class PartlyThere(msgspec.Struct, frozen=True, array_like=True):
    """A block of a lookup, by part and index in it, that these ranks lack and others have."""

    part: int
    index: int
    ranks: list[int]


class Located(Message, frozen=True):
    """One byte string a part, one byte a hash: the slowest place over all ranks, 0 if one lacks it.

    ``rates`` are those of the lower tiers among the places, as far as they are known. ``partly``: for each part whose
    first absent block is absent on some ranks only, which those are.
    """

    places: list[bytes]
    rates: list[TierRate] = []
    partly: list[PartlyThere] = []


class Read(Message, frozen=True):
    """Make these blocks readable in the arena (packed keys), promoting where needed.

    ``payload_bytes`` has one length for all keys, or one a key: how large a slot a promotion needs.
    """

    keys: list[bytes]
    payload_bytes: list[int]
    deadline_s: float


class Grant(msgspec.Struct, frozen=True, array_like=True):
    """One key of Granted or Reserved.

    ``status`` is a :class:`kveik.store.base.Status` value. With status ``hit`` (Read) or
    ``stored`` (Reserve) ``offset`` is where the slot's frame starts in the arena.
    """

    status: str
    offset: int = 0
    frame_bytes: int = 0
    place: int = ABSENT
    reason: str = ""


class Granted(Message, frozen=True):
    """Answer to Read: one Grant a key, in order; pinned until the lease is released."""

    lease: int
    grants: list[Grant]


class Reserve(Message, frozen=True):
    """Slots for new blocks (packed keys), each with a payload of ``payload_bytes``."""

    keys: list[bytes]
    payload_bytes: int


class Reserved(Message, frozen=True):
    """Answer to Reserve: ``stored`` with an offset, ``exists``, or ``failed`` with a reason."""

    lease: int
    grants: list[Grant]


class Commit(Message, frozen=True):
    """Publish written slots: (index in the Reserve, payload digest). The rest is given up."""

    lease: int
    digests: list[tuple[int, bytes]]


class Committed(Message, frozen=True):
    """Answer to Commit: a status for each entry, in order."""

    statuses: list[str]


class Release(Message, frozen=True):
    """End a lease."""

    lease: int


class Settled(Message, frozen=True):
    """These connections of the client's process have ended, and no copy into their slots is under way.

    Slots of a writer that lost its connection (for example because the agent was restarted)
    are kept from reuse as long as that process lives; this frees them earlier.
    """

    connections: list[int]


class Report(Message, frozen=True):
    """The client found these blocks wrong after a grant (packed keys): quarantine them."""

    keys: list[bytes]
    reason: str


class Drop(Message, frozen=True):
    """Delete the blocks of one namespace, or all (empty digest), in the arena and in the lower tiers.

    As far as that can be done: the answer says which tier may have kept some. For tools and tests.
    """

    namespace: bytes


class TellRequests(Message, frozen=True):
    """What became of these requests, as far as their engine knows; one that was told before is replaced."""

    requests: list[RequestFunnel]


class FindRequests(Message, frozen=True):
    """Ask for the latest requests of all engines of the node. For tools."""


class FoundRequests(Message, frozen=True):
    """Answer to FindRequests: the earliest first, and the namespaces that engines announced."""

    requests: list[RequestFunnel]
    namespaces: list[KnownNamespace]


class Stats(Message, frozen=True):
    """Ask for the agent's state."""


class StatsAnswer(Message, frozen=True):
    """The agent's state as a JSON document (text)."""

    document: str


class Done(Message, frozen=True):
    """Answer to Release, Settled, Report and TellRequests; ``count`` is how many blocks, or requests, were touched."""

    count: int = 0


class Dropped(Done, frozen=True):
    """Answer to Drop: ``count`` blocks in the arena, and in each lower tier by its name.

    ``notes`` say, for people, in which tier blocks may be left and why.
    """

    tiers: dict[str, int] = {}
    notes: list[str] = []


class Refused(Message, frozen=True):
    """The request could not be carried out; the text says why and what was expected."""

    reason: str


Request = (
    Hello | Lookup | Read | Reserve | Commit | Release | Settled | Report | Drop | Stats | TellRequests | FindRequests
)
Answer = Welcome | Located | Granted | Reserved | Committed | StatsAnswer | FoundRequests | Done | Dropped | Refused

"""What had become of the block that a request missed: from the memory of losses, and from other namespaces."""

from kveik.agent.block_fates import BlockFates
from kveik.agent.funnel import ELSEWHERE, MissingBlock, RequestFunnel
from kveik.agent.namespaces import Namespaces
from kveik.errors import KeyFormatError
from kveik.kv.keys import BlockKey
from kveik.kv.namespace import Namespace
from kveik.store.arena import Arena

#: Other namespaces that are looked into, at most.
NAMESPACES_MAX = 16


def explain_missing(record: RequestFunnel, arena: Arena, fates: BlockFates, namespaces: Namespaces) -> None:
    """Write into a record what had become of its missing block when it was asked for; nothing if that is not known.

    The block may be there again by now: its request computed and saved it.
    """
    missing = record.missing
    if missing is None or not record.namespace or record.asked_s < 0:
        return
    try:
        key = _key(record.namespace, missing)
    except KeyFormatError:
        return  # only a name that an engine made up has no form
    fate = fates.of(key, record.asked_s)
    if fate is not None:
        record.fate, record.fate_reason, record.fate_age_s = fate.kind, fate.reason, record.asked_s - fate.at_s
        return
    known = namespaces.all()
    own = next((one for one in known if one.digest == record.namespace), None)
    others = [one for one in known if one is not own][-NAMESPACES_MAX:]
    there = arena.holds([_key(other.digest, missing) for other in others])
    for other, holds in zip(others, there, strict=True):
        if holds:
            record.fate, record.fate_reason = ELSEWHERE, _differences(own, other)
            return


def _key(namespace: bytes, missing: MissingBlock) -> BlockKey:
    return BlockKey.of(namespace, missing.block_hash, missing.group, missing.ranks[0] if missing.ranks else 0)


def _differences(own: Namespace | None, other: Namespace) -> str:
    return "; ".join(own.differences(other)[:3]) if own is not None else "its facts are not known"

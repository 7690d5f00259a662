"""From a lookup to packed keys, and from the places of all ranks to one answer. Pure."""

from collections.abc import Sequence

from kveik.agent.protocol import ABSENT, ARENA, Located, Lookup, PartlyThere, TierRate
from kveik.errors import KeyFormatError, ProtocolError
from kveik.kv.keys import HASH_SIZES, key_prefix
from kveik.store.tier_rates import TierRate as Rate

KEYS_MAX = 1 << 20


def lookup_keys(request: Lookup) -> list[bytes]:
    """Packed keys: for each part, for each rank, for each hash. Raises :class:`ProtocolError`."""
    total = len(request.ranks) * sum(len(hashes) for _, hashes in request.parts)
    if total > KEYS_MAX:
        raise ProtocolError(f"lookup of {total} keys, at most {KEYS_MAX} are answered")
    if any(len(block_hash) not in HASH_SIZES for _, hashes in request.parts for block_hash in hashes):
        raise ProtocolError("a block hash is neither 16 nor 32 bytes long")
    try:
        return [
            prefix + block_hash
            for group, hashes in request.parts
            for prefix in [key_prefix(request.namespace, group, rank) for rank in request.ranks]
            for block_hash in hashes
        ]
    except KeyFormatError as error:
        raise ProtocolError(str(error)) from error


def tier_rate(tier: int, rate: Rate) -> TierRate | None:
    """A tier's rate as engines are told it; None while nothing is known."""
    if rate.get is None:
        return None
    fixed_s, byte_s = rate.get.coefficients
    sigma = rate.get.sigma_at(rate.get.at_s + rate.age_s)
    return TierRate(ARENA + 1 + tier, fixed_s, byte_s, sigma, rate.get.samples, rate.age_s, rate.waiting_bytes)


def located(request: Lookup, places: bytearray, rates: Sequence[TierRate] = ()) -> Located:
    """Fold the places of all ranks: absent if one rank lacks the block, else the slowest place."""
    answer: list[bytes] = []
    partly: list[PartlyThere] = []
    start = 0
    for part, (_, hashes) in enumerate(request.parts):
        by_rank = [
            places[start + rank * len(hashes) : start + (rank + 1) * len(hashes)] for rank in range(len(request.ranks))
        ]
        start += len(hashes) * len(request.ranks)
        if len(by_rank) == 1:
            answer.append(bytes(by_rank[0]))
        else:
            answer.append(bytes(0 if ABSENT in ranks else max(ranks) for ranks in zip(*by_rank, strict=True)))
            partly += _partly_there(part, answer[-1].find(ABSENT), request.ranks, by_rank)
    return Located(request.id, answer, list(rates), partly)


def _partly_there(
    part: int, first_absent: int, ranks: Sequence[int], by_rank: Sequence[bytearray]
) -> list[PartlyThere]:
    """The first absent block of a part, if only some ranks lack it."""
    if first_absent < 0:
        return []
    lacking = [rank for rank, places in zip(ranks, by_rank, strict=True) if places[first_absent] == ABSENT]
    return [PartlyThere(part, first_absent, lacking)] if len(lacking) < len(ranks) else []

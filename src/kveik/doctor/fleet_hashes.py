"""Whether engines of one model give one prompt the same block hashes: seed, algorithm, block sizes. Pure.

What vLLM 0.32 does (``vllm/v1/core/kv_cache_utils.py``): hashes start from ``PYTHONHASHSEED``, or from a fixed text for
sha256, or from a random number for xxhash. So an engine with a seed and one without never share a block, and nothing
says so.
"""

import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from kveik.doctor.check import Outcome, Point

SOURCE = "vLLM 0.32.0, vllm/v1/core/kv_cache_utils.py: init_none_hash"
_SEED_REMEDY = "start all engines with the same PYTHONHASHSEED (0, as `kveik up` and `kveik connect` give it)"
_RANDOM = "random in each process"
_UNSET = "PYTHONHASHSEED is not set"
#: What vLLM starts from without a seed.
_FIXED_TEXT = "vllm-none-hash"
_SEEDS_NAMED = 1000


@dataclass(frozen=True, slots=True)
class HashFacts:
    """What is known of one engine; empty is not known. ``seed`` is in words, ``first_hash`` of one prompt for all."""

    engine: str
    algorithm: str = ""
    block_tokens: str = ""
    hash_tokens: str = ""
    seed: str = ""
    namespace: str = ""
    first_hash: str = ""
    namespace_facts: Mapping[str, str] = field(default_factory=dict)


def seed_in_words(environ: Mapping[str, str] | None, digest: str, algorithm: str) -> str:
    """What hashes start from, by the engine's environment or by the digest that its namespace has; empty: not known."""
    if environ is not None:
        seed = environ.get("PYTHONHASHSEED")
        if seed is not None:
            return f"PYTHONHASHSEED={seed}"
        return _RANDOM if algorithm.startswith("xxhash") else _UNSET
    if not digest:
        return ""
    if digest == _digest(_FIXED_TEXT):
        return _UNSET
    named = next((str(seed) for seed in range(_SEEDS_NAMED) if _digest(str(seed)) == digest), "")
    return f"PYTHONHASHSEED={named}" if named else f"a seed of digest {digest}"


def judge_hashes(model: str, engines: Sequence[HashFacts]) -> list[Point]:
    """What is to be said of the engines of one model."""
    points = [
        *_equal(model, "hash algorithm", engines, "algorithm", "give all the same --prefix-caching-hash-algo"),
        *_equal(model, "block size", engines, "block_tokens", "give all the same --block-size"),
        *_equal(model, "hash block size", engines, "hash_tokens", "give all the same block sizes"),
        *_seeds(model, engines),
        *_first_hashes(model, engines),
        *_namespaces(model, engines),
    ]
    return points or [Point(Outcome.UNKNOWN, model, "the engines tell nothing of their hashes", "look at their logs")]


def _seeds(model: str, engines: Sequence[HashFacts]) -> list[Point]:
    random = [one.engine for one in engines if one.seed == _RANDOM]
    if random:
        told = f"{', '.join(random)}: block hashes start from a number that is {_RANDOM}: no other engine can ever hit"
        return [Point(Outcome.WRONG, f"hash seed of {model}", told, _SEED_REMEDY, SOURCE)]
    return _equal(model, "hash seed", engines, "seed", _SEED_REMEDY)


def _equal(model: str, what: str, engines: Sequence[HashFacts], field_name: str, remedy: str) -> list[Point]:
    """One point on a fact that all should have alike, and one on those of whom it is not known."""
    values = {one.engine: str(getattr(one, field_name)) for one in engines}
    known = {engine: value for engine, value in values.items() if value}
    about = f"{what} of {model}"
    if not known:
        return [Point(Outcome.UNKNOWN, about, "no engine tells it")] if field_name == "seed" else []
    points = []
    if odd := odd_ones(known):
        points.append(Point(Outcome.WRONG, about, odd.told, remedy, SOURCE))
    if silent := [engine for engine, value in values.items() if not value]:
        told = f"{', '.join(silent)}: it cannot be seen from here"
        points.append(Point(Outcome.UNKNOWN, about, told, "run the check on their machines"))
    return points or [Point(Outcome.WELL, about, f"{next(iter(known.values()))} everywhere", source=SOURCE)]


@dataclass(frozen=True, slots=True)
class Odd:
    """Values that differ: the usual one, and all of it in words, those who have another one first."""

    usual: str
    told: str


def odd_ones(values: Mapping[str, str]) -> Odd | None:
    """None if all are alike. Of a tie the first one is usual."""
    counted = Counter(values.values())
    if len(counted) < 2:
        return None
    usual = max(counted, key=lambda value: counted[value])
    odd = [f"{engine} has {value}" for engine, value in values.items() if value != usual]
    same = [engine for engine, value in values.items() if value == usual]
    return Odd(usual, f"{'; '.join(odd)}; {', '.join(same)} {'has' if len(same) == 1 else 'have'} {usual}")


def _first_hashes(model: str, engines: Sequence[HashFacts]) -> list[Point]:
    """The hash that engines told of the first block of one prompt: the proof, whatever they say of themselves."""
    known = {one.engine: one.first_hash for one in engines if one.first_hash}
    about = f"block hashes of {model}"
    if len(known) < 2:
        return []
    if odd := odd_ones(known):
        told = f"one prompt got several hashes: {odd.told}"
        return [Point(Outcome.WRONG, about, told, _SEED_REMEDY, "KV events of the engines")]
    return [Point(Outcome.WELL, about, f"equal on {', '.join(known)}", source="KV events of the engines")]


def _namespaces(model: str, engines: Sequence[HashFacts]) -> list[Point]:
    known = {one.engine: one.namespace for one in engines if one.namespace}
    about = f"namespace of {model}"
    if len(known) < 2:
        return []
    odd = odd_ones(known)
    if odd is None:
        return [Point(Outcome.WELL, about, "one for all: they can use each other's blocks")]
    usual = next(one for one in engines if one.namespace == odd.usual)
    told = [
        f"{one.engine}: {'; '.join(_differences(one, usual)) or 'why is not known on this machine'}"
        for one in engines
        if one.namespace and one.namespace != odd.usual
    ]
    remedy = "make these equal; blocks of different namespaces are never mixed up, and never shared"
    return [Point(Outcome.WRONG, about, f"not the one of {usual.engine}: {' | '.join(told)}", remedy, "kveik stats")]


def _differences(one: HashFacts, other: HashFacts) -> Iterable[str]:
    if not one.namespace_facts or not other.namespace_facts:
        return ()
    names = sorted(one.namespace_facts.keys() | other.namespace_facts.keys())
    pairs = ((name, one.namespace_facts.get(name, "none"), other.namespace_facts.get(name, "none")) for name in names)
    return [
        f"{name} {_shown(name, mine)}, there {_shown(name, theirs)}" for name, mine, theirs in pairs if mine != theirs
    ]


def _shown(name: str, value: str) -> str:
    """A fact for people: a seed is only a digest."""
    return f"({seed_in_words(None, value, '')})" if name == "hash_seed" and value != "none" else value


def _digest(seed: str) -> str:
    """As the connector writes it (:func:`kveik.connector.identity.hash_seed`)."""
    return hashlib.sha256(seed.encode()).hexdigest()[:16]

"""The namespace: all facts that make the bytes of a KV block usable, or useless, elsewhere.

Blocks of different namespaces never meet: the digest of all facts is part of every key.
Because a mismatch must never look like a plain miss, the facts themselves are kept beside the
digest, and a difference can be told in words.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType

from kveik.errors import ConfigError
from kveik.kv.keys import NAMESPACE_BYTES

#: Facts that every namespace must state. Engines may add more.
REQUIRED_FACTS = (
    "weights_digest",
    "config_digest",
    "dtype",
    "kv_cache_dtype",
    "kv_layout",
    "hash_block_size_tokens",
    "hash_algorithm",
    "hash_seed",
    "kv_cache_groups",
    "tensor_parallel_size",
    "pipeline_parallel_size",
    "frame_version",
)


@dataclass(frozen=True)
class Namespace:
    """An immutable set of facts, each a short text.

    ``label`` is for people (usually the model's name) and not part of the identity: a renamed
    folder with the same weights is the same namespace.
    """

    facts: Mapping[str, str]
    label: str = field(default="", compare=False)

    def __post_init__(self) -> None:
        missing = [name for name in REQUIRED_FACTS if not self.facts.get(name)]
        if missing:
            raise ConfigError(f"namespace facts missing or empty: {', '.join(missing)}")
        wrong = [name for name, value in self.facts.items() if not isinstance(value, str)]
        if wrong:
            raise ConfigError(f"namespace facts must be text: {', '.join(wrong)}")
        object.__setattr__(self, "facts", MappingProxyType(dict(sorted(self.facts.items()))))

    def __hash__(self) -> int:
        return hash(self.digest)

    @cached_property
    def digest(self) -> bytes:
        """16 bytes: the truncated SHA-256 of the facts as canonical JSON."""
        text = json.dumps(dict(self.facts), sort_keys=True, separators=(",", ":"), ensure_ascii=True)
        return hashlib.sha256(text.encode("ascii")).digest()[:NAMESPACE_BYTES]

    def with_facts(self, **facts: str) -> "Namespace":
        """This namespace with some facts added or replaced."""
        return Namespace({**self.facts, **facts}, self.label)

    def differences(self, other: "Namespace") -> list[str]:
        """Each fact that differs, in words: ``kv_cache_dtype bfloat16 != float32``."""
        names = sorted(self.facts.keys() | other.facts.keys())
        return [
            f"{name} {self.facts.get(name, '(absent)')} != {other.facts.get(name, '(absent)')}"
            for name in names
            if self.facts.get(name) != other.facts.get(name)
        ]

"""The one text form of a block's key in stores that name their objects by text.

``PREFIX-NAMESPACE-gGROUP-rRANK-HASH``: letters, digits, ``_`` and ``-`` only, and at most
:data:`LONGEST` characters, which every store takes (openYuanrong 0.8.1 refuses ``.`` and ``/``
and more than 255 bytes). All of it can be read back, so a store can be listed; the prefix keeps
fleets apart that share one store.
"""

import re

from kveik.errors import ConfigError, KeyFormatError
from kveik.kv.keys import BlockKey

#: The prefix of whoever does not choose one.
DEFAULT_PREFIX = "kveik"
#: Characters of the longest text.
LONGEST = 200
_PREFIX_LONGEST = LONGEST - len(BlockKey.of(b"\0" * 16, b"\0" * 32, 0xFFFF, 0xFFFF).text) - 1
_PREFIX = re.compile(rf"[A-Za-z0-9_-]{{1,{_PREFIX_LONGEST}}}")


class KeyTexts:
    """Texts of keys under one prefix, and keys of texts.

    Raises :class:`~kveik.errors.ConfigError` for a prefix that is too long or has other characters.
    """

    def __init__(self, prefix: str = DEFAULT_PREFIX) -> None:
        if not _PREFIX.fullmatch(prefix):
            raise ConfigError(
                f"prefix {prefix!r} of a store's keys: expected 1 to {_PREFIX_LONGEST} letters, digits, '_' or '-'"
            )
        self._start = f"{prefix}-"

    def __repr__(self) -> str:
        return f"KeyTexts({self._start[:-1]!r})"

    def of(self, key: BlockKey) -> str:
        """The text of a key."""
        return self._start + key.text

    def start(self, namespace: bytes) -> str:
        """How all texts of one namespace, or of all (empty digest), begin."""
        return f"{self._start}{namespace.hex()}-" if namespace else self._start

    def key(self, text: str) -> BlockKey | None:
        """The key of a text, or None for a text that is none of ours."""
        if not text.startswith(self._start):
            return None
        try:
            return BlockKey.parse(text[len(self._start) :])
        except KeyFormatError:
            return None

    def regex(self, namespace: bytes, *, spared: bytes = b"") -> str:
        """A regular expression that matches the whole texts of one namespace, or of all (empty digest), and no other.

        Of all, those of the namespace ``spared`` are left out. ECMAScript's grammar, which C++ reads, too.
        """
        digest = namespace.hex() if namespace else f"(?!{spared.hex()})[0-9a-f]{{32}}" if spared else "[0-9a-f]{32}"
        return f"^{self._start}{digest}-g[0-9]{{1,5}}-r[0-9]{{1,5}}-[0-9a-f]{{32,64}}$"

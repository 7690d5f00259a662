"""The namespaces that engines announced, and how those of one model differ."""

import threading

from kveik.kv.namespace import Namespace

_NOTES_MAX = 3


class Namespaces:
    """Known namespaces by digest. Two of one label are usually a mistake in one engine's settings."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: dict[bytes, Namespace] = {}
        self._by_label: dict[str, list[bytes]] = {}  # one namespace may go by several labels

    def announce(self, namespace: Namespace) -> tuple[bool, list[str]]:
        """Whether it is new, and in words how it differs from others of its label (latest first)."""
        with self._lock:
            is_new = namespace.digest not in self._known
            self._known.setdefault(namespace.digest, namespace)
            same_label = self._by_label.setdefault(namespace.label, [])
            if namespace.digest not in same_label:
                same_label.append(namespace.digest)
            others = [self._known[digest] for digest in same_label]
        notes = [
            f"namespace differs: {'; '.join(namespace.differences(other))} "
            f"(this engine != another one of {namespace.label or 'no label'}; they share no blocks)"
            for other in reversed(others)
            if other.digest != namespace.digest
        ]
        return is_new, notes[:_NOTES_MAX]

    def all(self) -> list[Namespace]:
        """All that engines announced, in that order."""
        with self._lock:
            return list(self._known.values())

    def facts(self, digest: bytes) -> dict[str, str]:
        """The facts of a namespace, or none if no engine announced it to this agent."""
        with self._lock:
            known = self._known.get(digest)
        return dict(known.facts) if known is not None else {}

    def label(self, digest: bytes) -> str:
        """The label of a namespace, or empty if no engine announced it to this agent."""
        with self._lock:
            known = self._known.get(digest)
        return known.label if known is not None else ""

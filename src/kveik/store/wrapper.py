"""What all wrappers of a store share: they go by the inner store's name, promises and sizes."""

from kveik.store.base import BlockStore, Capabilities, StoreStats


class StoreWrapper:
    """Base of stores that stand in front of another one and change what its calls do."""

    def __init__(self, inner: BlockStore) -> None:
        self._inner = inner

    @property
    def name(self) -> str:
        """The inner store's name."""
        return self._inner.name

    @property
    def capabilities(self) -> Capabilities:
        """The inner store's promises, kept or not."""
        return self._inner.capabilities

    def stats(self) -> StoreStats:
        """The inner store's sizes."""
        return self._inner.stats()

    def close(self) -> None:
        """Close the inner store."""
        self._inner.close()

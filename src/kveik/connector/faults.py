"""FOR TESTS: damage blocks before their digest is made, so that only a comparison of results finds it.

This is the fault that checksums cannot see: bytes that are stored and read back faithfully, and mean
something else. ``kveik verify`` must find it.
"""

from kveik.connector.layout import BlockLayout


class FaultPlanter:
    """Plants nothing unless a test asked for it."""

    @staticmethod
    def named(name: str, layout: BlockLayout) -> "FaultPlanter":
        """The planter for a value of the ``plant_fault`` setting."""
        return {"": FaultPlanter, "swap_layers": SwapLayers, "shift_block": ShiftBlock}[name](layout)

    def __init__(self, layout: BlockLayout) -> None:
        self._layout = layout

    def damage(self, group: int, payload: memoryview) -> None:
        """Change a block's payload in place."""


class SwapLayers(FaultPlanter):
    """Exchange the first two layers, as a connector with a wrong idea of the layout would."""

    def damage(self, group: int, payload: memoryview) -> None:
        """See :class:`FaultPlanter`."""
        layers = [plane.view.shape[2] for plane in self._layout.planes[group] for _ in range(plane.view.shape[0])]
        if len(layers) >= 2 and layers[0] == layers[1]:
            size = layers[0]
            first = bytes(payload[:size])
            payload[:size] = payload[size : 2 * size]
            payload[size : 2 * size] = first


class ShiftBlock(FaultPlanter):
    """Rotate the payload by an eighth of itself, as a wrong offset would."""

    def damage(self, group: int, payload: memoryview) -> None:
        """See :class:`FaultPlanter`."""
        cut = len(payload) // 8
        rotated = bytes(payload[cut:]) + bytes(payload[:cut])
        payload[:] = rotated

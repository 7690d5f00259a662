"""One figure of a plan: what it is, its value, how it was found, and the numbers that went in. Pure."""

from dataclasses import dataclass

GIB = 1 << 30
MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Figure:
    """``value`` in ``unit``; ``formula`` in words, ``filled`` with numbers; ``source``: where one of them is from."""

    name: str
    value: float | int | str
    unit: str
    formula: str
    filled: str
    source: str = ""

    @property
    def told(self) -> str:
        """The value as people read it."""
        if isinstance(self.value, str):
            return self.value
        if self.unit == "bytes":
            return size(self.value)
        shown = (
            f"{self.value:,.0f}" if abs(self.value) >= 100 or self.value == int(self.value) else f"{self.value:,.2f}"
        )
        return f"{shown} {self.unit}".rstrip()


def size(value: float) -> str:
    """Bytes as people read them, in powers of two."""
    for unit, scale in (("TiB", 1 << 40), ("GiB", GIB), ("MiB", MIB), ("KiB", 1 << 10)):
        if abs(value) >= scale:
            return f"{value / scale:,.2f} {unit}"
    return f"{value:,.0f} bytes"

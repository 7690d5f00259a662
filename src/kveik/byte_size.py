"""Numbers of bytes as people write and read them: ``2.5 GiB``."""

_UNITS = {"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}


def size_text(size: float) -> str:
    """Bytes for people: ``17 B``, ``1.5 GiB``."""
    if size < 1024:
        return f"{size:.0f} B"
    unit = next(unit for unit, factor in reversed(_UNITS.items()) if size >= factor)
    return f"{size / _UNITS[unit]:.1f} {unit}"


def read_size(text: str) -> int:
    """Bytes of ``4096`` or ``2.5 GiB``, with or without the space. Raises :class:`ValueError` for anything else."""
    for unit, factor in _UNITS.items():
        if text.endswith(unit):
            return int(float(text.removesuffix(unit)) * factor)
    return int(text)

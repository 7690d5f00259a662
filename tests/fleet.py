"""Engines and registries that tests of the fleet share."""

from typing import Any

from kveik.fleet.announcement import EngineAnnouncement


def engine(number: int = 1, **fields: Any) -> EngineAnnouncement:
    """The announcement of engine ``number``, named ``e1`` and so on."""
    words = {"url": f"http://10.0.0.{number}:8000", "engine_id": f"e{number}", "models": ("qwen3-8b",), **fields}
    return EngineAnnouncement(**words)

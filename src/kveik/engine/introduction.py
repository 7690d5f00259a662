"""What an engine says of itself when it is asked: the facts that the fleet wants to know."""

from dataclasses import dataclass

from kveik.engine.client import EngineClient
from kveik.errors import EngineError


@dataclass(frozen=True, slots=True)
class Introduction:
    """One engine's own words; 0 or empty for what it does not say.

    ``models``: its model first, then adapters. ``block_tokens``: size of a block of its prefix cache.
    ``complete``: nothing more is to be expected. An engine with Kveik's connector tells its namespace
    with its first request, and metrics may fail once.
    """

    models: tuple[str, ...]
    max_model_tokens: int = 0
    block_tokens: int = 0
    simulated: bool = False
    namespace: str = ""
    complete: bool = False


def introduce(client: EngineClient) -> Introduction:
    """Ask an engine. Raises :class:`EngineError` where it does not list its models; metrics it may lack."""
    models = client.models()
    limits = [model.max_model_tokens for model in models if model.max_model_tokens]
    try:
        metrics = client.metrics()
    except EngineError:
        metrics = None
    return Introduction(
        models=tuple(dict.fromkeys(model.name for model in models)),
        max_model_tokens=min(limits, default=0),
        block_tokens=metrics.block_tokens if metrics else 0,
        simulated=any(model.simulated for model in models),
        namespace=metrics.namespace if metrics else "",
        complete=metrics is not None and (bool(metrics.namespace) or not metrics.has_connector),
    )

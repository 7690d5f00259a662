"""The checks ``connector`` and ``prefix-caching``: whether what should make hits is there and works at each engine."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from kveik.doctor.check import Context, Outcome, Point, Verdict, fleet_of
from kveik.doctor.fleet_view import SeenEngine
from kveik.engine.metrics import Metric

_METRICS = "/metrics of the engine"
_LOAD = "start it with what `kveik connect` prints, or by `kveik up` with engine.shared_cache = true"
_NOBODY = Point(Outcome.UNKNOWN, "engines", "none answers, so nothing can be looked at")


@dataclass(frozen=True, slots=True)
class ConnectorFacts:
    """What one engine shows. None is not known; ``meant``: what its configuration says."""

    engine: str
    model: str
    meant: bool | None = None
    loaded: bool | None = None
    serving: bool | None = None
    attached: bool | None = None
    agent_trouble: str = ""


def check_connector(context: Context) -> Verdict:
    """Look at all engines. Raises :class:`kveik.errors.DoctorError` where no fleet was named."""
    view = fleet_of(context).view()
    trouble = view.agent.trouble if view.agent else ""
    facts = [_facts(engine, trouble) for engine in view.answering]
    evidence = [f"kveik_connector_* in {_METRICS}"]
    evidence += [f"the agent at {view.agent.socket}: {trouble or 'answers'}"] if view.agent else []
    return Verdict(evidence, list(judge_connectors(facts)) or [_NOBODY])


def check_prefix_caching(context: Context) -> Verdict:
    """Look at all engines. Raises :class:`kveik.errors.DoctorError` where no fleet was named."""
    engines = fleet_of(context).view().answering
    points = [_prefix_caching(engine.name, _told(engine, "enable_prefix_caching")) for engine in engines]
    return Verdict([f"{Metric.CACHE_CONFIG.value} in {_METRICS}"], points or [_NOBODY])


def judge_connectors(engines: Sequence[ConnectorFacts]) -> Iterator[Point]:
    """What is to be said of each engine, beside the others of its model."""
    for one in engines:
        yield _judge(one, [other.engine for other in engines if other.model == one.model and other.loaded])


def _judge(one: ConnectorFacts, loaded: Sequence[str]) -> Point:
    if one.loaded is None:
        return Point(Outcome.UNKNOWN, one.engine, "its metrics cannot be read", "look at its log")
    if not one.loaded:
        return _not_loaded(one, loaded)
    if one.serving is False:
        told = "the connector is loaded and does not serve: it refused the layout of the KV cache, or found no weights"
        return Point(Outcome.WRONG, one.engine, told, "its log says why: kveik logs", _METRICS)
    if one.attached is False:
        why = f" ({one.agent_trouble})" if one.agent_trouble else ""
        told = f"the connector has no agent{why}: everything is computed"
        remedy = "start the node's agent, and give both the same agent.socket"
        return Point(Outcome.WRONG, one.engine, told, remedy, _METRICS)
    if one.serving is None or one.attached is None:
        told = "the connector is loaded, and has told nothing yet"
        return Point(Outcome.UNKNOWN, one.engine, told, "send it a request, and look again", _METRICS)
    return Point(Outcome.WELL, one.engine, "the connector is loaded, attached and serves", source=_METRICS)


def _not_loaded(one: ConnectorFacts, loaded: Sequence[str]) -> Point:
    if one.meant is False:
        return Point(Outcome.WELL, one.engine, "it runs without Kveik's connector, as configured")
    if one.meant:
        told = "Kveik's connector is not loaded, though the configuration wants it: the engine was started otherwise"
        return Point(Outcome.WRONG, one.engine, told, _LOAD, _METRICS)
    if loaded:
        told = f"Kveik's connector is not loaded here, and is at {', '.join(loaded)}: this engine shares nothing"
        return Point(Outcome.WRONG, one.engine, told, _LOAD, _METRICS)
    told = "Kveik's connector is not loaded; whether it should be, nobody said"
    return Point(Outcome.UNKNOWN, one.engine, told, _LOAD, _METRICS)


def _facts(engine: SeenEngine, agent_trouble: str) -> ConnectorFacts:
    meant = engine.described.shared_cache and not engine.described.simulated
    metrics = engine.metrics
    if metrics is None:
        return ConnectorFacts(engine.name, engine.model, meant)

    def gauge(metric: Metric) -> bool | None:
        return metrics.total(metric) >= 1 if metrics.has(metric) else None

    return ConnectorFacts(
        engine.name,
        engine.model,
        meant if engine.described.shared_cache is not None else None,
        loaded=metrics.has_connector,
        serving=gauge(Metric.KVEIK_SERVING),
        attached=gauge(Metric.KVEIK_ATTACHED),
        agent_trouble=agent_trouble,
    )


def _prefix_caching(name: str, told: str) -> Point:
    if told == "True":
        return Point(Outcome.WELL, name, "prefix caching is on", source=_METRICS)
    if told == "False":
        text = "prefix caching is off: nothing is hashed, so neither the engine nor any store can hit"
        remedy = (
            "take --no-enable-prefix-caching out; where the platform turned it off (MLA on CPUs without AMX), the log "
            "says so, and it has to stay off"
        )
        return Point(Outcome.WRONG, name, text, remedy, _METRICS)
    return Point(Outcome.UNKNOWN, name, "it does not tell whether prefix caching is on", "look at its start in the log")


def _told(engine: SeenEngine, name: str) -> str:
    return engine.metrics.label(Metric.CACHE_CONFIG, name) if engine.metrics else ""

"""The check ``answers``: whether all engines and routers answer, and agree about who is in the fleet."""

from collections.abc import Iterator, Mapping, Sequence

from kveik.doctor.check import Context, Outcome, Point, Verdict, fleet_of
from kveik.doctor.fleet_hashes import odd_ones
from kveik.doctor.fleet_view import FleetView, SeenEngine, SeenRouter
from kveik.fleet.lifecycle import State


def check_answers(context: Context) -> Verdict:
    """Look at all. Raises :class:`kveik.errors.DoctorError` where no fleet was named."""
    view = fleet_of(context).view()
    evidence = [f"{engine.name} at {engine.described.url}" for engine in view.engines]
    evidence += [f"router {router.url}" for router in view.routers]
    return Verdict(evidence, list(judge_answers(view)))


def judge_answers(view: FleetView) -> Iterator[Point]:
    """What is to be said of each engine, of the routers, and of engines of one model together."""
    if not view.engines and not view.routers:
        yield Point(Outcome.UNKNOWN, "fleet", "no engine and no router is described", "name them: --engine, --router")
        return
    if not view.is_up:
        yield Point(Outcome.UNKNOWN, "fleet", "nothing answers: it does not run, or cannot be reached", "kveik up")
        return
    routed = any(router.shows for router in view.routers)
    yield from (_engine(engine, routed=routed) for engine in view.engines)
    yield from _routers(view.routers)
    for model, engines in view.by_model().items():
        yield from _alike(model, engines)


def _engine(engine: SeenEngine, *, routed: bool) -> Point:
    if engine.trouble:
        remedy = "kveik status says in which state it is; kveik logs, what it said"
        return Point(Outcome.WRONG, engine.name, f"it does not answer: {engine.trouble}", remedy)
    if engine.no_token and engine.works:
        told = f"it is slow, and works: {engine.no_token}"
        return Point(Outcome.UNKNOWN, engine.name, told, "ask again when it has less to do; kveik status")
    if engine.no_token:
        told = f"it lists its models and makes no token: {engine.no_token}"
        return Point(
            Outcome.WRONG, engine.name, told, "kveik status; an engine that hangs is restarted by the watchdog"
        )
    if routed and not engine.state:
        told = "it answers, and no router knows it: it gets no requests"
        return Point(Outcome.WRONG, engine.name, told, "kveik register, or put it into the router's configuration")
    if engine.state == State.ANNOUNCED.value:
        return Point(Outcome.UNKNOWN, engine.name, f"it is {engine.state}: ask again in a moment")
    if engine.state and engine.state != State.READY.value:
        why = f" ({engine.why})" if engine.why else ""
        told = f"it answers and gets no requests: it is {engine.state}{why}"
        return Point(Outcome.BEWARE, engine.name, told, "kveik readmit, when that is over")
    told = f"serves {engine.model}{f', vLLM {engine.version}' if engine.version else ''}"
    return Point(Outcome.WELL, engine.name, told)


def _routers(routers: Sequence[SeenRouter]) -> Iterator[Point]:
    for router in routers:
        if router.trouble:
            yield Point(Outcome.WRONG, router.url, f"the router does not answer: {router.trouble}", "kveik logs router")
        elif router.locked:
            told = f"the router does not tell us who is in the fleet: {router.locked}"
            yield Point(Outcome.UNKNOWN, router.url, told, "--token-file FILE, or KVEIK_ADMISSION_TOKEN")
        elif router.registry_trouble:
            told = f"the router cannot reach its registry: {router.registry_trouble}"
            yield Point(Outcome.WRONG, router.url, told, "kveik doctor etcd")
        elif not router.members:
            yield Point(Outcome.WRONG, router.url, "the router knows no engine", "kveik register, or kveik up")
        else:
            yield Point(Outcome.WELL, router.url, f"knows {len(router.members)} engines")
    sets = {router.url: ", ".join(sorted(router.members)) for router in routers if router.shows}
    if odd := odd_ones(sets):
        told = f"routers know different engines: {odd.told}"
        remedy = "give all the same router.registry; two of a name are two etcds: kveik doctor etcd"
        yield Point(Outcome.WRONG, "routers", told, remedy)


def _alike(model: str, engines: Sequence[SeenEngine]) -> Iterator[Point]:
    facts: Mapping[str, dict[str, str]] = {
        "version of vLLM": {one.name: one.version for one in engines if one.version},
        "longest prompt": {one.name: str(one.max_model_tokens) for one in engines if one.max_model_tokens},
    }
    for what, values in facts.items():
        if odd := odd_ones(values):
            remedy = "make them equal, unless a roll is under way: the router takes the shortest, versions hash apart"
            yield Point(Outcome.BEWARE, f"{what} of {model}", odd.told, remedy)

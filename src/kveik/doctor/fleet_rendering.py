"""The check ``rendering``: whether all engines of a model make the same tokens of a request.

Bodies of 14 kinds (:mod:`kveik.router.parity_bodies`). For prompts and chats engines tell the tokens at ``/tokenize``.
The other kinds get a real request for one token under a salt of its own, and the numbers of their tokens are compared.
"""

import json
import secrets
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from kveik.doctor.check import Context, Outcome, Point, Verdict, fleet_of
from kveik.doctor.fleet_view import TOKEN_S, Fleet, SeenEngine, together
from kveik.engine.client import EngineClient, EngineStatusError
from kveik.errors import EngineError
from kveik.router.parity_bodies import KINDS, BodyOfKind

_REMEDY = (
    "give all engines the same model folder (tokenizer and chat template), the same --chat-template and the same vLLM; "
    "until then they share no blocks of such requests, and answer differently"
)
_SOURCE = "the engines' /tokenize"
#: Where answers count a prompt's tokens. Of /v1/messages those that were cached are counted apart.
_COUNTS = ("prompt_tokens", "input_tokens")
_CACHED = ("cache_read_input_tokens", "cache_creation_input_tokens")


@dataclass(frozen=True, slots=True)
class Rendered:
    """What one engine made of the bodies, by kind. A kind that it does not offer is not there.

    ``tokens``: as told; ``counts``: where only their number is told; ``silent``: why nothing is known.
    """

    engine: str
    tokens: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    counts: Mapping[str, int] = field(default_factory=dict)
    silent: Mapping[str, str] = field(default_factory=dict)


def check_rendering(context: Context) -> Verdict:
    """Ask all engines. Raises :class:`kveik.errors.DoctorError` where no fleet was named."""
    fleet = fleet_of(context)
    points: list[Point] = []
    names: list[str] = []
    for model, engines in fleet.view().by_model().items():
        points += judge_rendering(model, together(partial(_render, fleet=fleet), engines))
        names += [engine.name for engine in engines]
    evidence = [f"{len(KINDS)} kinds of bodies at {', '.join(names) or 'no engine'}"]
    return Verdict(evidence, points or [Point(Outcome.UNKNOWN, "engines", "none answers, so nothing can be compared")])


def judge_rendering(model: str, engines: Sequence[Rendered]) -> list[Point]:
    """What is to be said of the engines of one model: each difference once, by engine."""
    about = f"prompts of {model}"
    if len(engines) < 2:
        return [Point(Outcome.WELL, about, "one engine only, so there is nothing to differ from")] if engines else []
    wrong: dict[str, list[str]] = {}
    compared = 0
    for kind in (one.kind for one in KINDS):
        tokens = {one.engine: one.tokens[kind] for one in engines if kind in one.tokens}
        counts = {one.engine: (one.counts[kind],) for one in engines if kind in one.counts}
        for values, are_tokens in ((tokens, True), (counts, False)):
            compared += len(values) > 1
            for engine, told in _differences(values, are_tokens=are_tokens):
                wrong.setdefault(engine, []).append(f"{kind}: {told}")
    points = [
        Point(Outcome.WRONG, f"{about} at {engine}", _shortened(told), _REMEDY, _SOURCE)
        for engine, told in wrong.items()
    ]
    points += _silence(about, engines)
    if not points and not compared:
        return [Point(Outcome.UNKNOWN, about, "no engine tells what it makes of a prompt")]
    return points or [Point(Outcome.WELL, about, f"{compared} kinds are rendered alike", source=_SOURCE)]


def _differences(values: Mapping[str, tuple[int, ...]], *, are_tokens: bool) -> Iterator[tuple[str, str]]:
    """Who differs from most, and how. Of a tie the first engine is right."""
    if not values:
        return
    counted = Counter(values.values())
    usual = max(counted, key=lambda value: counted[value])
    right = next(engine for engine, value in values.items() if value == usual)
    for engine, value in values.items():
        if value == usual:
            continue
        if not are_tokens:
            yield engine, f"{value[0]} tokens, {right} has {usual[0]}"
            continue
        pairs = enumerate(zip(value, usual, strict=False))
        place = next((number for number, (mine, other) in pairs if mine != other), min(len(value), len(usual)))
        mine, other = (str(one[place]) if place < len(one) else "the end" for one in (value, usual))
        lengths = "" if len(value) == len(usual) else f" ({len(value)} tokens, {right} has {len(usual)})"
        yield engine, f"token {place} is {mine}, at {right} {other}{lengths}"


def _shortened(told: Sequence[str]) -> str:
    more = f"; and {len(told) - 3} kinds more" if len(told) > 3 else ""
    return f"differ: {'; '.join(told[:3])}{more}"


def _silence(about: str, engines: Sequence[Rendered]) -> list[Point]:
    reasons = {one.engine: next(iter(one.silent.values())) for one in engines if one.silent}
    kinds = {one.engine: len(one.silent) for one in engines}
    return [
        Point(Outcome.UNKNOWN, f"{about} at {engine}", f"{kinds[engine]} kinds were not answered: {why}")
        for engine, why in reasons.items()
    ]


def _render(engine: SeenEngine, fleet: Fleet) -> Rendered:
    client = fleet.client(engine.described, TOKEN_S)
    salt = f"kveik-doctor-{secrets.token_hex(8)}"
    tokens: dict[str, tuple[int, ...]] = {}
    counts: dict[str, int] = {}
    silent: dict[str, str] = {}
    for one in KINDS:
        try:
            if one.told:
                tokens[one.kind] = _told(client, one, engine.model)
            elif not engine.no_token:
                counts[one.kind] = _counted(client, one, engine.model, salt)
        except EngineStatusError as error:
            if error.status >= 500:  # below, it does not offer this kind, which is no difference in rendering
                silent[one.kind] = str(error)
        except EngineError as error:
            silent[one.kind] = str(error)
    return Rendered(engine.name, tokens, counts, silent)


def _told(client: EngineClient, one: BodyOfKind, model: str) -> tuple[int, ...]:
    answer = client.post("/tokenize", json.loads(one.question(model)))
    tokens = answer.get("tokens")
    if not isinstance(tokens, list) or not all(isinstance(token, int) for token in tokens):
        raise EngineError(f"{client.url}/tokenize: the answer has no tokens")
    return tuple(tokens)


def _counted(client: EngineClient, one: BodyOfKind, model: str, salt: str) -> int:
    body: dict[str, Any] = json.loads(one.request(model, salt))
    answer = client.post(one.target.decode(), body).get("usage")
    usage: dict[str, Any] = answer if isinstance(answer, dict) else {}
    counts = [usage[name] for name in _COUNTS if name in usage]
    if not counts or not isinstance(counts[0], int):
        raise EngineError(f"{client.url}{one.target.decode()}: the answer does not count the prompt's tokens")
    cached: int = sum(int(usage.get(name) or 0) for name in _CACHED)
    return counts[0] + cached

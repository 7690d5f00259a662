"""The check ``hashes``: gathers what engines, their processes and the agent tell of block hashes, and asks for one."""

import secrets
from functools import partial

from kveik.doctor.check import Context, Outcome, Point, Verdict, fleet_of
from kveik.doctor.fleet_block_hash import first_block_hash
from kveik.doctor.fleet_hashes import HashFacts, judge_hashes, seed_in_words
from kveik.doctor.fleet_view import TOKEN_S, Fleet, FleetView, SeenEngine, together
from kveik.engine.metrics import Metric
from kveik.errors import DoctorError, EngineError

#: Blocks of the prompt. A model with several groups may tell of its first block later than of its last.
_BLOCKS = 2
_TOKENS_MAX = 2048


def check_hashes(context: Context) -> Verdict:
    """Compare the engines of each model. Raises :class:`DoctorError` where no fleet was named."""
    fleet = fleet_of(context)
    view = fleet.view()
    if not view.answering:
        return Verdict([], [Point(Outcome.UNKNOWN, "engines", "none answers, so nothing can be compared")])
    salt = f"kveik-doctor-{secrets.token_hex(8)}"
    points: list[Point] = []
    asked = 0
    for model, engines in view.by_model().items():
        tokens = _prompt_tokens(engines)
        facts = together(partial(_facts, fleet=fleet, view=view, salt=salt, tokens=tokens), engines)
        asked += sum(bool(one.first_hash) for one in facts)
        points += judge_hashes(model, facts)
    where = ["metrics of the engines", "their processes on this machine"]
    where += ["the agent's list of namespaces"] if view.agent and view.agent.state else []
    return Verdict([*where, f"KV events of {asked} engines about one prompt"], points)


def _prompt_tokens(engines: tuple[SeenEngine, ...]) -> int:
    """Tokens of a prompt that has whole blocks everywhere; 0 if there is none that all take."""
    blocks = max((one.metrics.block_tokens for one in engines if one.metrics), default=0)
    limits = [one.max_model_tokens for one in engines if one.max_model_tokens]
    tokens = _BLOCKS * blocks + 1
    return tokens if blocks and tokens < min([_TOKENS_MAX, *limits]) else 0


def _facts(engine: SeenEngine, fleet: Fleet, view: FleetView, salt: str, tokens: int) -> HashFacts:
    metrics = engine.metrics
    if metrics is None:
        return HashFacts(engine.name, seed=seed_in_words(engine.environ, "", ""))
    algorithm = metrics.label(Metric.CACHE_CONFIG, "prefix_caching_hash_algo")
    namespace = metrics.namespace
    facts = view.agent.facts(namespace) if view.agent and namespace else {}
    return HashFacts(
        engine.name,
        algorithm=algorithm,
        block_tokens=str(metrics.block_tokens or ""),
        hash_tokens=_known(metrics.label(Metric.CACHE_CONFIG, "hash_block_size")),
        seed=seed_in_words(engine.environ, facts.get("hash_seed", ""), algorithm),
        namespace=namespace,
        namespace_facts=facts,
        first_hash=_first_hash(engine, fleet, salt, tokens),
    )


def _first_hash(engine: SeenEngine, fleet: Fleet, salt: str, tokens: int) -> str:
    """Its hash of the prompt; empty where it does not publish events that reach us."""
    events = engine.described.events
    if not events or not tokens or engine.no_token:
        return ""
    prompt = tuple(5 + number % 40 for number in range(tokens))
    try:
        return first_block_hash(fleet.client(engine.described, TOKEN_S), engine.model, events, prompt, salt, TOKEN_S)
    except (DoctorError, EngineError):
        return ""


def _known(text: str) -> str:
    return "" if text == "None" else text

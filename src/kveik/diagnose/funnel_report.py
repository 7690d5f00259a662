"""One request explained: its stages, the one that ate the hit, and the sentence that says why. Pure."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from kveik.agent.funnel import KnownNamespace, RequestFunnel
from kveik.diagnose.funnel import MEANINGS, Stage, eater, stages, used_tokens
from kveik.diagnose.funnel_cause import cause_of
from kveik.diagnose.funnel_missing import Cause, Known
from kveik.diagnose.funnel_sums import difference
from kveik.diagnose.request_ids import client_id, is_of
from kveik.router.request_book import RoutedRequest


@dataclass(frozen=True, slots=True)
class Explained:
    """What became of one request of one engine. ``ate``: the stage that lost most; empty: nothing was lost."""

    record: RequestFunnel
    stages: Sequence[Stage]
    ate: str
    cause: Cause
    notes: Sequence[str]


def explain(
    record: RequestFunnel,
    others: Sequence[RequestFunnel],
    namespaces: Iterable[KnownNamespace],
    routed: RoutedRequest | None = None,
) -> Explained:
    """Explain one request by what its engine, the node's other engines and the router saw."""
    found = stages(record)
    ate = eater(found)
    known = Known(others, {one.digest: one for one in namespaces})
    notes = [*_notes(record), *(_notes_of_router(record, routed) if routed is not None else ())]
    return Explained(record, found, ate.name if ate is not None else "", cause_of(record, ate, known), notes)


def chosen(records: Sequence[RequestFunnel], asked: str) -> list[RequestFunnel]:
    """The requests of engines that an id names, the earliest first: one for each prompt and each attempt."""
    return [record for record in records if is_of(record.request_id, asked)]


def _notes(record: RequestFunnel) -> list[str]:
    notes = []
    if record.local_tokens:
        notes.append(f"{record.local_tokens} tokens were in the engine's own cache")
    if record.asked_blocks:
        tiers = ", ".join(f"{count} in {tier}" for tier, count in record.found_blocks.items()) or "none there"
        notes.append(f"{record.asked_blocks} blocks asked for in {record.lookup_s * 1000:.1f} ms: {tiers}")
    if record.cut:
        notes.append(f"the hit is not longer because {record.cut}")
    if record.computed_from >= 0 and record.computed_from == used_tokens(record) - 1:
        notes.append("the last token of a prompt that was loaded whole is computed again, for the logits")
    if record.dropped_blocks:
        dropped = ", ".join(f"{count} {reason}" for reason, count in sorted(record.dropped_blocks.items()))
        notes.append(f"blocks of this request that were not saved: {dropped}; later requests will not find them")
    return notes


def _notes_of_router(record: RequestFunnel, routed: RoutedRequest) -> list[str]:
    how = "by its own tokens" if routed.exact else "as estimated from the text"
    expected, rendered = routed.expected_prompt_tokens, record.prompt_tokens
    chose = (
        f"the router chose {routed.engine} ({routed.reason}), expecting {routed.expected_cached_tokens} cached tokens"
    )
    notes = [f"{chose} of {expected} in the prompt, {how}"]
    if routed.exact and expected != rendered:
        notes.append(
            f"the engine rendered {rendered} tokens, not {expected}: it does not render this prompt as the router"
        )
    if unequal := difference(record, routed.cached_tokens):
        notes.append(unequal)
    return notes


def values_of(explained: Explained) -> dict[str, object]:
    """All of it as plain values."""
    record = explained.record
    missing = record.missing
    return {
        "request_id": client_id(record.request_id),
        "engine_request_id": record.request_id,
        "engine": record.engine,
        "engine_pid": record.engine_pid,
        "began_s": round(record.began_s, 3),
        "namespace": record.namespace.hex(),
        "stages": [{"name": stage.name, "tokens": stage.tokens, "lost": stage.lost} for stage in explained.stages],
        "ate": explained.ate,
        "cause": explained.cause.code,
        "sentence": explained.cause.sentence,
        "notes": list(explained.notes),
        "local_tokens": record.local_tokens,
        "used_tokens": used_tokens(record),
        "computed_from": record.computed_from,
        "lookup": record.lookup,
        "choice": record.choice,
        "missing": None
        if missing is None
        else {
            "group": missing.group,
            "first_token": missing.first_token,
            "end_token": missing.end_token,
            "block_hash": missing.block_hash.hex(),
        },
    }


def rows_of(explained: Explained) -> list[tuple[str, str, str, str]]:
    """The stages for a table: name, tokens, lost, and what is counted; the one that ate the hit is marked."""
    return [
        (
            f"> {stage.name}" if stage.name == explained.ate else f"  {stage.name}",
            str(stage.tokens),
            f"-{stage.lost}" if stage.lost else "",
            MEANINGS[stage.name],
        )
        for stage in explained.stages
    ]

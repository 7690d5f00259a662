"""Why the stage that ate a hit did so: a short code and one plain sentence. Pure."""

from kveik.agent.funnel import RequestFunnel
from kveik.diagnose.funnel import ALIGNED, ALLOWED, HASHED, KNOWN, LOADED, REACHABLE, VERIFIED, Stage
from kveik.diagnose.funnel_missing import Cause, Known, why_missing

NOTHING_LOST = "nothing_lost"


def cause_of(record: RequestFunnel, stage: Stage | None, known: Known) -> Cause:
    """Why this request lost what it lost at ``stage``, the one that lost most; None: no stage did."""
    if stage is None:
        return _nothing_lost(record)
    if stage.name in (KNOWN, ALIGNED):
        return why_missing(record, known) if stage.name == KNOWN else _not_aligned(record, stage, known)
    if stage.name in (HASHED, REACHABLE):
        return _too_short(record) if stage.name == HASHED else _out_of_reach(record)
    if stage.name == ALLOWED:
        return _not_allowed(record, stage)
    if stage.name in (LOADED, VERIFIED):
        return _not_loaded(record) if stage.name == LOADED else _wrong_bytes(record)
    return _not_used(record)


def _nothing_lost(record: RequestFunnel) -> Cause:
    if not record.lookup:
        return Cause("not_asked_yet", "The engine has not come to this request yet.")
    return Cause(NOTHING_LOST, "All that a hit can have was used; only the rest of the prompt was computed.")


# -- before anything is asked ---------------------------------------------------------------------


def _too_short(record: RequestFunnel) -> Cause:
    if not record.lookup and not record.hashed_tokens:
        return Cause("not_asked_yet", "The engine has not come to this request yet.")
    return Cause(
        "short_prompt",
        f"The prompt is shorter than one block: it has {record.prompt_tokens} tokens and a block has "
        f"{record.hash_tokens}, so nothing of it has a name by which it could be found.",
    )


def _out_of_reach(record: RequestFunnel) -> Cause:
    if record.hashed_tokens < record.unit_tokens:
        return Cause(
            "unit",
            f"Hits of this model come in units of {record.unit_tokens} tokens, and the prompt's whole blocks hold "
            f"{record.hashed_tokens}: no hit is possible, whatever is stored.",
        )
    return Cause(
        "last_token",
        f"The prompt's last token has to be computed, and with it its whole unit of {record.unit_tokens} tokens; the "
        "prompt has no more than that.",
    )


# -- what was there and not used ------------------------------------------------------------------


def _not_aligned(record: RequestFunnel, stage: Stage, known: Known) -> Cause:
    unit = record.unit_tokens
    if stage.tokens >= record.known_tokens // unit * unit:
        return Cause(
            "unit",
            f"Cut by alignment: {record.known_tokens} tokens are there, but hits of this model come in units of {unit} "
            f"tokens, so {stage.tokens} of them are usable.",
        )
    if record.missing is None:
        return Cause(
            "cut", f"Not usable by all groups at once: {record.cut or 'the drafter needs the last unit anew'}."
        )
    why = why_missing(record, known)
    return Cause(why.code, f"Not usable by all groups at once: {record.cut}. {why.sentence}")


def _not_allowed(record: RequestFunnel, stage: Stage) -> Cause:
    if record.choice == "too_few":
        return Cause("too_few", "The hit is shorter than connector.min_hit_tokens, so it was not loaded.")
    load_s, first_token_s, cold_s = record.choice_s
    how = "nothing of it" if record.choice == "none" else f"only {stage.tokens - record.local_tokens} tokens"
    return Cause(
        "break_even",
        f"It was there, but loading is no faster than computing, so {how} was loaded: first token expected after "
        f"{first_token_s:.3f} s ({load_s:.3f} s of that loading), after {cold_s:.3f} s if all is computed.",
    )


def _not_loaded(record: RequestFunnel) -> Cause:
    if record.failed_blocks:
        return Cause("load_failed", f"The load failed for {_blocks(record)}, so those tokens were computed.")
    if record.load_tokens == 0:
        return Cause("not_taken", "vLLM did not take the offer: its own cache reached as far by then.")
    return Cause("load_failed", "The load brought less than was found.")


def _wrong_bytes(record: RequestFunnel) -> Cause:
    return Cause("wrong_bytes", f"Bytes that came were wrong and were refused: {_blocks(record)}.")


def _blocks(record: RequestFunnel) -> str:
    return ", ".join(f"{count} block(s): {reason}" for reason, count in sorted(record.failed_blocks.items()))


def _not_used(record: RequestFunnel) -> Cause:
    return Cause(
        "computed_again",
        f"vLLM began to compute at token {record.computed_from}, before the hit's end: it gave up memory that was "
        "loaded (preemption), or a failed block made it compute the whole hit.",
    )

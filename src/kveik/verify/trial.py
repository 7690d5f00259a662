"""One whole proof: read what the engines are, build prompts, carry out the legs, judge."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from kveik.engine.client import EngineClient, EngineStatusError
from kveik.engine.metrics import MetricsSnapshot
from kveik.errors import VerifyError
from kveik.verify.legs import Leg, Mode
from kveik.verify.prompts import LANGUAGES, Prompt, boundary_lengths, build_prompts
from kveik.verify.proof import AT_ONCE, Proof, ProofPlan, Say, Subject
from kveik.verify.settle import QUIET_S
from kveik.verify.testbed import Testbed, TestbedSpec, read_model_config
from kveik.verify.verdict import Verdict, judge


@dataclass(frozen=True, kw_only=True)
class TrialOptions:
    """What the user wants. Zeros and empty values mean: find out, or choose.

    ``read_back`` demands the connector's comparison of loaded blocks with their digests.
    """

    dtype: str = ""
    lengths: Sequence[int] = ()
    languages: Sequence[str] = LANGUAGES
    modes: Sequence[Mode] = tuple(Mode)
    skipped: Sequence[Leg] = ()
    read_back: bool = True
    answer_tokens: int = 16
    block_tokens: int = 0
    window_tokens: int = 0
    seed: int = 1
    quiet_s: float = QUIET_S

    @property
    def legs(self) -> tuple[Leg, ...]:
        """The legs to carry out."""
        return tuple(leg for leg in Leg if leg not in self.skipped)


@dataclass(frozen=True)
class EngineFacts:
    """What an engine says about itself. Empty and 0: it does not say."""

    model: str
    dtype: str
    max_model_tokens: int
    unit_tokens: int
    read_back_every: int | None
    cache_tokens: int


@dataclass(frozen=True)
class Outcome:
    """The verdict, and a description of what it is about for the JSON document."""

    verdict: Verdict
    about: dict[str, Any] = field(default_factory=dict)


def read_facts(client: EngineClient, options: TrialOptions) -> EngineFacts:
    """What the engine is, from its models, metrics and, in development mode, its configuration.

    Raises :class:`~kveik.errors.VerifyError` when the block size is unknown.
    """
    model, snapshot = client.model(), client.metrics()
    try:
        config = client.server_config()
    except EngineStatusError as error:
        if error.status != 404:
            raise
        config = {}
    unit = options.block_tokens or _unit_tokens(config, snapshot)
    if not unit:
        raise VerifyError(f"{client.url} does not say its block size; give it with --block-tokens")
    extra = _part(_part(config, "kv_transfer_config"), "kv_connector_extra_config")
    return EngineFacts(
        model=model.name,
        dtype=options.dtype or str(_part(config, "model_config").get("dtype") or "").removeprefix("torch."),
        max_model_tokens=model.max_model_tokens,
        unit_tokens=unit,
        read_back_every=int(extra.get("read_back_every") or 0) if config else None,
        cache_tokens=int(_part(config, "cache_config").get("kv_cache_size_tokens") or 0),
    )


def prove(first: Subject, second: Subject | None, options: TrialOptions, say: Say) -> Outcome:
    """The whole proof over running engines.

    Raises :class:`~kveik.errors.VerifyError` and :class:`~kveik.errors.EngineError` when a leg
    that was not left out cannot be carried out.
    """
    facts = read_facts(first.client, options)
    _check_read_back(facts, options)
    prompts = _prompts(first, facts, options)
    plan = ProofPlan(
        prompts=prompts,
        legs=options.legs,
        modes=options.modes,
        answer_tokens=options.answer_tokens,
        unit_tokens=facts.unit_tokens,
        quiet_s=options.quiet_s,
    )
    proof = Proof(plan, first, second, say)
    proof.check_possible()
    runs = proof.run()
    verdict = judge(
        runs,
        dtype=facts.dtype,
        unit_tokens=facts.unit_tokens,
        read_back=options.read_back,
        skipped=options.skipped,
    )
    return Outcome(verdict, _about(first, second, facts, options, prompts))


def prove_started(
    model: Path,
    engine_python: str,
    agent_python: str,
    options: TrialOptions,
    say: Say,
    *,
    plant_fault: str = "",
    nodes: int = 1,
    store_config: Path | None = None,
) -> Outcome:
    """Start an agent and two engines, prove, and stop them again. Raises as :func:`prove` does.

    With two ``nodes`` each engine has an agent of its own; ``store_config`` names what these share.
    """
    config = read_model_config(model)
    window = options.window_tokens or window_tokens(config)
    max_tokens = _max_model_tokens(options, window, config)
    fault = {"plant_fault": plant_fault} if plant_fault else {}
    spec = TestbedSpec(
        model=model,
        engine_python=engine_python,
        agent_python=agent_python,
        dtype=options.dtype or "float32",
        max_model_tokens=max_tokens,
        engine_tokens=_engine_tokens(options, window),
        shared_tokens=len(options.modes) * sum(_prompt_tokens(options, window)),
        connector={"read_back_every": 1, **fault},
        nodes=nodes,
        store_config=store_config,
    )
    options = replace(options, dtype=spec.dtype, window_tokens=window, read_back=True)
    with Testbed(spec, say) as testbed:
        first, second = testbed.subjects()
        return prove(first, second, options, say)


def window_tokens(config: Mapping[str, Any]) -> int:
    """The sliding window in a model's configuration, 0 for none."""
    if config.get("use_sliding_window") is False:
        return 0
    return int(config.get("sliding_window") or 0)


def _part(config: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    part = config.get(name)
    return part if isinstance(part, dict) else {}


def _unit_tokens(config: Mapping[str, Any], snapshot: MetricsSnapshot) -> int:
    aligned = _part(config, "cache_config").get("cache_hit_alignment_tokens")
    return int(aligned or snapshot.block_tokens)


def _max_model_tokens(options: TrialOptions, window: int, config: Mapping[str, Any]) -> int:
    """Room for the longest prompt and its answer, within what the model allows."""
    # Block sizes are not known before the start; 256 tokens is the largest that vLLM-CPU uses.
    lengths = options.lengths or boundary_lengths(options.block_tokens or 256, window, 1 << 30)
    needed = max(lengths) + options.answer_tokens + 1
    allowed = int(config.get("max_position_embeddings") or needed)
    return min(allowed, -(-needed // 512) * 512)


def _prompt_tokens(options: TrialOptions, window: int) -> list[int]:
    """What each prompt and its answer take of a cache, in whole blocks of the usual size."""
    block = options.block_tokens or 128
    lengths = options.lengths or boundary_lengths(block, window, 1 << 30)
    return [-(-(length + options.answer_tokens) // block) * block for length in lengths for _ in options.languages]


def _engine_tokens(options: TrialOptions, window: int) -> int:
    """What the engine's own cache must hold.

    All prompts must stay for the local hits, and the connector holds at most half of the
    engine's blocks while it saves what a concurrent leg computed at the same time.
    """
    tokens = sorted(_prompt_tokens(options, window))
    return max(sum(tokens), 4 * sum(tokens[-AT_ONCE:]))


def _prompts(first: Subject, facts: EngineFacts, options: TrialOptions) -> list[Prompt]:
    limit = (facts.max_model_tokens or 1 << 30) - options.answer_tokens
    lengths = list(options.lengths) or boundary_lengths(facts.unit_tokens, options.window_tokens, limit)
    if too_long := [length for length in lengths if length > limit]:
        raise VerifyError(f"a prompt of {too_long[0]} tokens does not fit; the engine allows {limit} with the answer")
    prompts = build_prompts(first.tokenize, options.languages, lengths, options.seed)
    total = sum(prompt.tokens + options.answer_tokens + facts.unit_tokens for prompt in prompts)
    if facts.cache_tokens and total > facts.cache_tokens:
        raise VerifyError(
            f"the prompts take about {total} tokens of the engine's own cache, which holds {facts.cache_tokens}: "
            "local hits would be evicted; use fewer --lengths or --languages, or a larger KV cache"
        )
    return prompts


def _check_read_back(facts: EngineFacts, options: TrialOptions) -> None:
    if options.read_back and facts.read_back_every == 0 and any(leg.external for leg in options.legs):
        raise VerifyError(
            "the engine's connector does not read loaded blocks back: start it with "
            '"read_back_every": 1 in kv_connector_extra_config (or --skip read-back)'
        )


def _about(
    first: Subject, second: Subject | None, facts: EngineFacts, options: TrialOptions, prompts: Sequence[Prompt]
) -> dict[str, Any]:
    return {
        "engines": [subject.client.url for subject in (first, second) if subject is not None],
        "model": facts.model,
        "dtype": facts.dtype or "unknown",
        "unit_tokens": facts.unit_tokens,
        "window_tokens": options.window_tokens,
        "answer_tokens": options.answer_tokens,
        "seed": options.seed,
        "read_back": options.read_back,
        "prompts": [prompt.name for prompt in prompts],
    }

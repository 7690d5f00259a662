"""Which members of a request's body are read, endpoint by endpoint. What they mean: :mod:`kveik.router.prompt`."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

import msgspec
from msgspec import Raw

#: A member that isn't there.
NOTHING = Raw(b"")

#: Engines take whole numbers written as 16.0 too.
Number = int | float | None


class Body(msgspec.Struct, gc=False):
    """Members that bodies of several kinds have."""

    model: str | None = None
    stream: bool | None = None
    cache_salt: Raw = NOTHING
    tools: Raw = NOTHING
    max_tokens: Number = None


class Generation(Body, gc=False):
    """Members that decide whether another engine could continue the answer."""

    temperature: Number = None
    seed: Number = None
    n: Number = None
    min_tokens: Number = None
    presence_penalty: Number = None
    frequency_penalty: Number = None
    best_of: Raw = NOTHING
    stop: Raw = NOTHING
    stop_token_ids: Raw = NOTHING
    logprobs: Raw = NOTHING
    prompt_logprobs: Raw = NOTHING
    echo: Raw = NOTHING
    response_format: Raw = NOTHING
    structured_outputs: Raw = NOTHING
    guided_json: Raw = NOTHING
    guided_regex: Raw = NOTHING
    guided_choice: Raw = NOTHING
    guided_grammar: Raw = NOTHING
    logits_processors: Raw = NOTHING
    use_beam_search: Raw = NOTHING
    return_token_ids: Raw = NOTHING
    return_tokens_as_token_ids: Raw = NOTHING
    add_special_tokens: Raw = NOTHING
    truncate_prompt_tokens: Raw = NOTHING
    prompt_embeds: Raw = NOTHING
    suffix: Raw = NOTHING

    @property
    def is_resumable(self) -> bool:
        """Whether its answer is plain text with one choice, which comes out the same (or as well) when continued."""
        if self.temperature != 0 and self.seed is None:
            return False
        if self.n not in (None, 1) or self.min_tokens or self.presence_penalty or self.frequency_penalty:
            return False
        special = _special_members(self)
        return special == _NO_SPECIAL_MEMBERS or all(bytes(value) in _NOT_ASKED for value in special)


_SPECIAL = (
    "tools", "best_of", "stop", "stop_token_ids", "logprobs", "prompt_logprobs", "echo", "response_format",
    "structured_outputs", "guided_json", "guided_regex", "guided_choice", "guided_grammar", "logits_processors",
    "use_beam_search", "return_token_ids", "return_tokens_as_token_ids", "prompt_embeds", "suffix",
)  # fmt: skip
_special_members = attrgetter(*_SPECIAL)
_NO_SPECIAL_MEMBERS = (NOTHING,) * len(_SPECIAL)
_NOT_ASKED = frozenset((b"", b"null", b"false", b"[]", b"{}", b'""', b'{"type":"text"}', b'{"type": "text"}'))


class Chat(Generation, gc=False):
    """``/v1/chat/completions``."""

    messages: Raw = NOTHING
    max_completion_tokens: Number = None
    functions: Raw = NOTHING
    tool_choice: Raw = NOTHING
    documents: Raw = NOTHING
    chat_template: Raw = NOTHING
    chat_template_kwargs: Raw = NOTHING
    add_generation_prompt: Raw = NOTHING
    continue_final_message: Raw = NOTHING
    reasoning_effort: Raw = NOTHING
    mm_processor_kwargs: Raw = NOTHING


class Completion(Generation, gc=False):
    """``/v1/completions``."""

    prompt: Raw = NOTHING


class Response(Body, gc=False):
    """``/v1/responses``."""

    input: Raw = NOTHING
    instructions: Raw = NOTHING
    max_output_tokens: Number = None
    previous_response_id: Raw = NOTHING
    conversation: Raw = NOTHING
    prompt: Raw = NOTHING
    reasoning: Raw = NOTHING


class Messages(Body, gc=False):
    """``/v1/messages``, Anthropic's."""

    system: Raw = NOTHING
    messages: Raw = NOTHING
    tool_choice: Raw = NOTHING
    thinking: Raw = NOTHING


class Embedding(Body, gc=False):
    """``/v1/embeddings``."""

    input: Raw = NOTHING
    messages: Raw = NOTHING
    add_special_tokens: Raw = NOTHING
    truncate_prompt_tokens: Raw = NOTHING


@dataclass(frozen=True, slots=True)
class BodyKind:
    """How the bodies of one endpoint are read.

    ``prompt``: the member that is the prompt; its JSON begins with one of the bytes ``begins``.
    ``before``: members that are rendered before it, in that order. ``seeds``: whatever else changes the
    rendered prompt; ``no_seeds`` is how they look where there are none.
    """

    name: bytes
    decode: Callable[[bytes], Any]
    prompt_name: str
    prompt: Callable[[Any], Raw]
    before: Callable[[Any], tuple[Raw, ...]]
    seeds: Callable[[Any], tuple[Raw, ...]]
    max_tokens: Callable[[Any], Number]
    begins: bytes
    expected: str
    takes_token_ids: bool
    no_seeds: tuple[Raw, ...]


def _kind(
    name: bytes,
    body: type[Body],
    before: tuple[str, str],
    prompt: str,
    seeds: tuple[str, ...],
    max_tokens: Callable[[Any], Number] = attrgetter("max_tokens"),
) -> BodyKind:
    only_a_list = prompt == "messages"
    return BodyKind(
        name,
        msgspec.json.Decoder(body).decode,
        prompt,
        attrgetter(prompt),
        attrgetter(*before),
        attrgetter(*seeds),
        max_tokens,
        begins=b"[" if only_a_list else b'["',
        expected="a list" if only_a_list else "text or a list",
        takes_token_ids=not only_a_list,
        no_seeds=(NOTHING,) * len(seeds),
    )


KINDS: Mapping[bytes, BodyKind] = {
    b"/v1/chat/completions": _kind(
        b"chat",
        Chat,
        ("tools", "functions"),
        "messages",
        (
            "cache_salt", "tool_choice", "documents", "chat_template", "chat_template_kwargs", "add_generation_prompt",
            "continue_final_message", "reasoning_effort", "mm_processor_kwargs", "add_special_tokens",
            "truncate_prompt_tokens",
        ),
        lambda body: body.max_completion_tokens or body.max_tokens,
    ),
    b"/v1/completions": _kind(
        b"completion",
        Completion,
        ("tools", "prompt_embeds"),
        "prompt",
        ("cache_salt", "suffix", "add_special_tokens", "truncate_prompt_tokens"),
    ),
    b"/v1/responses": _kind(
        b"response",
        Response,
        ("tools", "instructions"),
        "input",
        ("cache_salt", "previous_response_id", "conversation", "prompt", "reasoning"),
        attrgetter("max_output_tokens"),
    ),
    b"/v1/messages": _kind(
        b"message", Messages, ("tools", "system"), "messages", ("cache_salt", "tool_choice", "thinking")
    ),
    b"/v1/embeddings": _kind(
        b"embedding",
        Embedding,
        ("tools", "messages"),
        "input",
        ("cache_salt", "add_special_tokens", "truncate_prompt_tokens"),
    ),
}  # fmt: skip

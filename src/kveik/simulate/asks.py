"""Requests for tokens, read and checked: what vLLM refuses is refused in its words."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec

from kveik.errors import KveikError
from kveik.simulate.tokenizer import TOKEN_BYTES, pack_ids, pack_text, render_chat


class RefusedRequestError(KveikError):
    """A request that is answered with an error: status, vLLM's error type and the parameter at fault."""

    def __init__(self, message: str, status: int = 400, kind: str = "BadRequestError", param: str | None = None):
        super().__init__(message)
        self.status, self.kind, self.param = status, kind, param

    def document(self) -> dict[str, Any]:
        """The body in vLLM's error shape."""
        return {"error": {"message": str(self), "type": self.kind, "param": self.param, "code": self.status}}


class _StreamOptions(msgspec.Struct):
    include_usage: bool | None = False


class _Body(msgspec.Struct, kw_only=True):
    """Fields that the APIs share; what is not named here is accepted and ignored."""

    model: str | None = None
    max_tokens: int | None = None
    stream: bool | None = False
    stream_options: _StreamOptions | None = None
    n: int | None = 1
    stop: str | list[str] | None = None
    ignore_eos: bool | None = False
    cache_salt: str | None = None
    return_token_ids: bool | None = False


class _Chat(_Body, kw_only=True):
    messages: list[dict[str, Any]]
    max_completion_tokens: int | None = None
    tools: list[Any] | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    logprobs: bool | None = False
    top_logprobs: int | None = None


class _Completion(_Body, kw_only=True):
    prompt: Any
    logprobs: int | None = None
    return_tokens_as_token_ids: bool | None = False


class _Responses(_Body, kw_only=True):
    input: str | list[dict[str, Any]]
    instructions: str | None = None
    max_output_tokens: int | None = None


class _Messages(_Body, kw_only=True):
    messages: list[dict[str, Any]]
    max_tokens: int
    system: str | list[dict[str, Any]] | None = None
    stop_sequences: list[str] | None = None
    tools: list[Any] | None = None


class _Embeddings(_Body, kw_only=True):
    input: Any
    encoding_format: str | None = "float"


class _Tokenize(msgspec.Struct, kw_only=True):
    model: str | None = None
    prompt: str | None = None
    messages: list[dict[str, Any]] | None = None
    tools: list[Any] | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    add_generation_prompt: bool = True
    continue_final_message: bool = False


#: Turns a path and a body into the packed tokens of its prompt, as a real model's files have it.
Render = Callable[[str, bytes], bytes]


@dataclass(frozen=True, slots=True)
class ModelLimits:
    """What requests are checked against. ``answer_tokens``: how long an answer is if nothing cuts it.

    With ``render``, prompts have its tokens instead of the simulated engine's own.
    """

    model: str
    max_model_tokens: int
    answer_tokens: int
    render: Render | None = None

    def tokens(self, path: str, body: bytes, own: bytes) -> bytes:
        """The packed tokens of a prompt that are ``own`` by the engine's own tokenizer."""
        if self.render is None:
            return own
        try:
            return self.render(path, body)
        except KveikError as error:
            raise RefusedRequestError(str(error)) from error


@dataclass(slots=True)
class Ask:
    """A request for tokens. ``packed`` is the prompt in tokens, ``context`` what the answer follows from.

    ``top_logprobs`` is -1 where no log probabilities are wanted. ``finish``: why the answer ends
    after ``answer_tokens``.
    """

    packed: bytes
    context: bytes
    answer_tokens: int
    finish: str = "stop"
    n: int = 1
    stream: bool = False
    include_usage: bool = False
    salt: str = ""
    stops: tuple[str, ...] = ()
    top_logprobs: int = -1
    token_ids: bool = False
    tokens_as_ids: bool = False
    base64: bool = False

    @property
    def prompt_tokens(self) -> int:
        """Length of the prompt."""
        return len(self.packed) // TOKEN_BYTES


_Kind = TypeVar("_Kind")


def _reader(kind: type[_Kind]) -> Callable[[bytes], _Kind]:
    decoder = msgspec.json.Decoder(kind, strict=True)

    def read(body: bytes) -> _Kind:
        try:
            return decoder.decode(body)
        except msgspec.ValidationError as error:
            raise RefusedRequestError(str(error), kind="Bad Request") from error
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise RefusedRequestError(f"JSON decode error: {error}", kind="Bad Request") from error

    return read


_read_chat, _read_completion = _reader(_Chat), _reader(_Completion)
_read_responses, _read_messages = _reader(_Responses), _reader(_Messages)
_read_embeddings, _read_tokenize = _reader(_Embeddings), _reader(_Tokenize)
_read_detokenize: Callable[[bytes], dict[str, Any]] = _reader(dict)


def chat(body: bytes, limits: ModelLimits) -> Ask:
    """The request in a body of ``/v1/chat/completions``. Raises :class:`RefusedRequestError`, as all of these do."""
    given = _read_chat(body)
    if not given.messages:
        raise RefusedRequestError("messages must not be empty", param="messages")
    packed = _rendered(given, given.messages)
    max_tokens = given.max_tokens if given.max_completion_tokens is None else given.max_completion_tokens
    ask = _ask(given, limits, packed, max_tokens, limits.tokens("/v1/chat/completions", body, packed))
    if given.logprobs:
        ask.top_logprobs = given.top_logprobs or 0
    return ask


def completion(body: bytes, limits: ModelLimits) -> Ask:
    """The request in a body of ``/v1/completions``: one prompt, as text or as token ids."""
    given = _read_completion(body)
    packed, is_text = _prompt(given.prompt, "prompt")
    max_tokens = 16 if given.max_tokens is None else given.max_tokens
    tokens = limits.tokens("/v1/completions", body, packed) if is_text else packed
    ask = _ask(given, limits, packed, max_tokens, tokens)
    if not is_text:
        ask.context = packed  # zero bytes at the end of a text are padding, those of an id are not
    if given.logprobs is not None:
        ask.top_logprobs = given.logprobs
    ask.tokens_as_ids = bool(given.return_tokens_as_token_ids)
    return ask


def responses(body: bytes, limits: ModelLimits) -> Ask:
    """The request in a body of ``/v1/responses``; nothing is kept for a later one."""
    given = _read_responses(body)
    messages = [{"role": "user", "content": given.input}] if isinstance(given.input, str) else given.input
    if given.instructions:
        messages = [{"role": "system", "content": given.instructions}, *messages]
    packed = render_chat(messages)
    return _ask(given, limits, packed, given.max_output_tokens, limits.tokens("/v1/responses", body, packed))


def messages(body: bytes, limits: ModelLimits) -> Ask:
    """The request in a body of ``/v1/messages``."""
    given = _read_messages(body)
    system = [{"role": "system", "content": given.system}] if given.system else []
    given.stop = given.stop_sequences
    packed = render_chat([*system, *given.messages], tools=given.tools or ())
    return _ask(given, limits, packed, given.max_tokens, limits.tokens("/v1/messages", body, packed))


def embeddings(body: bytes, limits: ModelLimits) -> Ask:
    """The request in a body of ``/v1/embeddings``: one input, as text or as token ids."""
    given = _read_embeddings(body)
    packed, _ = _prompt(given.input, "input")
    ask = _ask(given, limits, packed, 1, packed)
    ask.base64 = given.encoding_format == "base64"
    ask.stream = False
    return ask


def tokenize(body: bytes, limits: ModelLimits) -> bytes:
    """The packed tokens that ``/tokenize`` is asked for."""
    given = _read_tokenize(body)
    _check_model(given.model, limits)
    if given.prompt is not None:
        return limits.tokens("/v1/completions", body, pack_text(given.prompt))
    if given.messages is None:
        raise RefusedRequestError("prompt or messages is needed", kind="Bad Request")
    return limits.tokens("/v1/chat/completions", body, _rendered(given, given.messages))


def _rendered(given: _Chat | _Tokenize, messages: list[dict[str, Any]]) -> bytes:
    return render_chat(
        messages,
        tools=given.tools or (),
        template_options=given.chat_template_kwargs,
        generation_prompt=given.add_generation_prompt,
        open_end=given.continue_final_message,
    )


def detokenize(body: bytes, limits: ModelLimits) -> bytes:
    """The packed tokens that ``/detokenize`` is given."""
    if limits.render is not None:
        raise RefusedRequestError("with another model's tokens the simulated engine has no text of tokens")
    given = _read_detokenize(body)
    _check_model(given.get("model"), limits)
    return _ids(given.get("tokens"), "tokens")


def _ask(given: _Body, limits: ModelLimits, packed: bytes, max_tokens: int | None, tokens: bytes) -> Ask:
    """``packed`` is what the answer follows from, ``tokens`` what the prompt is for the cache."""
    _check_model(given.model, limits)
    answer_tokens, finish = _length(len(tokens) // TOKEN_BYTES, max_tokens, bool(given.ignore_eos), limits)
    n = 1 if given.n is None else given.n
    if not 1 <= n <= 128:
        raise RefusedRequestError(f"n must be from 1 to 128, got {n}.", param="n")
    stop = given.stop or ()
    return Ask(
        tokens,
        packed.rstrip(b"\0"),
        answer_tokens,
        finish,
        n,
        bool(given.stream),
        given.stream_options is not None and bool(given.stream_options.include_usage),
        given.cache_salt or "",
        (stop,) if isinstance(stop, str) else tuple(stop),
        token_ids=bool(given.return_token_ids),
    )


def _check_model(model: Any, limits: ModelLimits) -> None:
    if model and model != limits.model:
        raise RefusedRequestError(f"The model `{model}` does not exist.", 404, "NotFoundError", "model")


def _length(prompt: int, max_tokens: int | None, ignore_eos: bool, limits: ModelLimits) -> tuple[int, str]:
    """How many tokens an answer gets, and why it ends there."""
    limit = limits.max_model_tokens
    if max_tokens is not None and max_tokens < 1:
        raise RefusedRequestError(f"max_tokens must be at least 1, got {max_tokens}.", param="max_tokens")
    if prompt >= limit or prompt + (max_tokens or 0) > limit:
        wanted = f"you requested {max_tokens} output tokens and " if max_tokens and prompt < limit else ""
        raise RefusedRequestError(
            f"This model's maximum context length is {limit} tokens. However, {wanted}your prompt contains "
            f"{prompt} input tokens. Please reduce the length of the input prompt or the number of requested "
            "output tokens.",
            param="input_tokens",
        )
    bound = limit - prompt if max_tokens is None else max_tokens
    if ignore_eos or bound <= limits.answer_tokens:
        return bound, "length"
    return limits.answer_tokens, "stop"


def _prompt(prompt: Any, name: str) -> tuple[bytes, bool]:
    """The packed tokens of a prompt given as text or ids, and whether it was text."""
    if isinstance(prompt, list) and prompt and not isinstance(prompt[0], int):
        if len(prompt) > 1:
            raise RefusedRequestError(f"{name}: the simulated engine takes one prompt a request", param=name)
        prompt = prompt[0]
    if not prompt:
        raise RefusedRequestError(f"{name} must not be empty", param=name)
    return (pack_text(prompt), True) if isinstance(prompt, str) else (_ids(prompt, name), False)


def _ids(ids: Any, name: str) -> bytes:
    if not isinstance(ids, list):
        raise RefusedRequestError(f"{name} must be text or a list of token ids", param=name)
    try:
        return pack_ids(ids)
    except ValueError as error:
        raise RefusedRequestError(f"{name}: {error}", param=name) from error

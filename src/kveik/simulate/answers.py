"""Answers on the wire, as events of a stream and as whole documents: completions and chats.

Generated words need no escaping, so the events of plain streams are put together from bytes;
only what is asked for seldom (log probabilities, token ids) goes through a JSON encoder.
"""

import time
from collections.abc import Callable
from itertools import count
from typing import Any, ClassVar

import msgspec

from kveik.simulate.asks import Ask
from kveik.simulate.drafts import Draft
from kveik.simulate.tokenizer import TOKEN_BYTES

_json: Callable[[Any], bytes] = msgspec.json.Encoder().encode
_numbers = count(1)

DONE = b"data: [DONE]\n\n"


class Answer:
    """One answer: its drafts, and how they look in one API. Subclasses say the latter.

    ``cached_tokens`` is -1 where the engine does not report it.
    """

    prefix: ClassVar[str] = "sim-"

    def __init__(self, ask: Ask, model: str) -> None:
        self.ask = ask
        self.model = model
        self.id = f"{self.prefix}{next(_numbers):016x}"
        self.created = int(time.time())
        self.cached_tokens = 0
        self.noise = 0.0
        self.drafts: list[Draft] = []

    def begin(self, context: bytes) -> None:
        """Know what the answer follows from; called before its first word."""
        ask = self.ask
        self.drafts = [Draft(context, n, ask.answer_tokens, ask.finish, ask.stops) for n in range(ask.n)]

    def opening(self) -> list[bytes]:
        """Events before the first word."""
        return []

    def step(self, tokens: int) -> list[bytes]:
        """Events of the next ``tokens`` words of each draft."""
        drafts = self.drafts
        if len(drafts) == 1:
            return self._word_events(0, drafts[0], tokens)
        return [
            event for _ in range(tokens) for n, draft in enumerate(drafts) for event in self._word_events(n, draft, 1)
        ]

    def closing(self) -> list[bytes]:
        """Events after the last word."""
        return [DONE]

    def document(self) -> bytes:
        """The whole answer at once. Lets the drafts grow to their ends."""
        raise NotImplementedError

    def _word_events(self, n: int, draft: Draft, count: int) -> list[bytes]:
        raise NotImplementedError

    @property
    def completion_tokens(self) -> int:
        """Words of all drafts so far."""
        return sum([len(draft.words) for draft in self.drafts])

    def usage(self) -> dict[str, Any]:
        """OpenAI's usage object."""
        prompt, completion = self.ask.prompt_tokens, self.completion_tokens
        usage: dict[str, Any] = {
            "prompt_tokens": prompt,
            "total_tokens": prompt + completion,
            "completion_tokens": completion,
        }
        if self.cached_tokens >= 0:
            usage["prompt_tokens_details"] = {"cached_tokens": self.cached_tokens}
        return usage


class ChoicesAnswer(Answer):
    """What completions and chats have in common: a list of choices, and usage at the end of a stream if asked for.

    Where nothing but the words is asked for, they stand between ``opening_of_word`` and ``tail`` in an
    event after which more come, and between the two parts of ``message_around`` in a document.
    """

    kind: ClassVar[str]
    chunk_kind: ClassVar[str]
    opening_of_word: ClassVar[bytes]
    tail: ClassVar[bytes]
    message_around: ClassVar[tuple[bytes, bytes]]

    def __init__(self, ask: Ask, model: str) -> None:
        super().__init__(ask, model)
        self._plain = ask.top_logprobs < 0 and not ask.token_ids
        self._heads: list[bytes] = []
        if ask.stream:
            outline = _json({**self._outline(self.chunk_kind), "choices": []}).removesuffix(b"]}")
            self._heads = [b'data: %b{"index":%d,%b' % (outline, n, self.opening_of_word) for n in range(ask.n)]

    def closing(self) -> list[bytes]:
        """The usage, if asked for, and ``[DONE]``."""
        if not self.ask.include_usage:
            return [DONE]
        return [self._event({"choices": [], "usage": self.usage()}), DONE]

    def document(self) -> bytes:
        """The answer as one document."""
        drafts = enumerate(self.drafts)
        if self._plain:
            choices = b",".join([self._plain_whole(n, draft) for n, draft in drafts])
        else:
            choices = b",".join([_json(self._whole(n, draft)) for n, draft in drafts])
        outline = _json(self._outline(self.kind)).removesuffix(b"}")
        return b'%b,"choices":[%b],"usage":%b}' % (outline, choices, _json(self.usage()))

    def word(self, text: str) -> dict[str, Any]:
        """The part of a streamed choice that holds a word."""
        raise NotImplementedError

    def message(self, text: str) -> dict[str, Any]:
        """The part of a whole choice that holds the text."""
        raise NotImplementedError

    def logprobs(self, draft: Draft) -> dict[str, Any]:
        """The log probabilities of a draft's last word."""
        raise NotImplementedError

    def joined(self, logprobs: list[dict[str, Any]]) -> dict[str, Any]:
        """The log probabilities of several words as one object."""
        return {name: [value for one in logprobs for value in one[name]] for name in logprobs[0]}

    def _word_events(self, n: int, draft: Draft, count: int) -> list[bytes]:
        if not self._plain:
            return [self._full_event(n, draft, word) for _ in range(count) for word in draft.grow()]
        words, head, tail = draft.grow(count), self._heads[n], self.tail
        events = [head + word + tail for word in words]
        if words and draft.ended:
            events[-1] = self._full_event(n, draft, words[-1])
        return events

    def _full_event(self, n: int, draft: Draft, word: bytes) -> bytes:
        choice: dict[str, Any] = {"index": n, **self.word(word.decode()), "logprobs": None}
        if self.ask.top_logprobs >= 0:
            choice["logprobs"] = self.logprobs(draft)
        if self.ask.token_ids:
            choice["token_ids"] = [draft.token_id()]
        choice["finish_reason"] = draft.finish if draft.ended else None
        choice["stop_reason"] = draft.stopped_by if draft.ended else None
        return self._event({"choices": [choice]})

    def _plain_whole(self, n: int, draft: Draft) -> bytes:
        before, after = self.message_around
        text = b"".join(draft.grow(draft.limit))
        stopped_by = b"null" if draft.stopped_by is None else _json(draft.stopped_by)
        ends = b',"logprobs":null,"finish_reason":"%b","stop_reason":%b}' % (draft.finish.encode(), stopped_by)
        return b'{"index":%d,%b%b%b%b' % (n, before, text, after, ends)

    def _whole(self, n: int, draft: Draft) -> dict[str, Any]:
        text, logprobs = "", []
        if self.ask.top_logprobs >= 0:
            while not draft.ended:
                text += draft.grow()[0].decode()
                logprobs.append(self.logprobs(draft))
        choice: dict[str, Any] = {"index": n, **self.message(text or draft.rest())}
        choice["logprobs"] = self.joined(logprobs) if logprobs else None
        if self.ask.token_ids:
            choice["token_ids"] = [draft.token_id(at) for at in range(len(draft.words))]
        return {**choice, "finish_reason": draft.finish, "stop_reason": draft.stopped_by}

    def _outline(self, kind: str) -> dict[str, Any]:
        return {"id": self.id, "object": kind, "created": self.created, "model": self.model}

    def _event(self, fields: dict[str, Any]) -> bytes:
        return b"data: " + _json({**self._outline(self.chunk_kind), **fields}) + b"\n\n"


class CompletionAnswer(ChoicesAnswer):
    """``/v1/completions``."""

    prefix = "cmpl-"
    kind = chunk_kind = "text_completion"
    opening_of_word = b'"text":"'
    message_around = (b'"text":"', b'"')
    tail = b'","logprobs":null,"finish_reason":null,"stop_reason":null}]}\n\n'

    def word(self, text: str) -> dict[str, Any]:
        """A word as text."""
        return {"text": text}

    message = word

    def logprobs(self, draft: Draft) -> dict[str, Any]:
        """Four lists, one entry each for the last word."""
        name = "token_id:{}" if self.ask.tokens_as_ids else "{}"
        best = draft.candidates(max(1, self.ask.top_logprobs), self.noise)
        top = {name.format(token): value for token, value in best.items()}
        chosen, value = next(iter(top.items()))
        offset = (len(draft.words) - 1) * TOKEN_BYTES
        return {"text_offset": [offset], "token_logprobs": [value], "tokens": [chosen], "top_logprobs": [top]}


class ChatAnswer(ChoicesAnswer):
    """``/v1/chat/completions``."""

    prefix = "chatcmpl-"
    kind, chunk_kind = "chat.completion", "chat.completion.chunk"
    opening_of_word = b'"delta":{"content":"'
    message_around = (b'"message":{"role":"assistant","content":"', b'"}')
    tail = b'"},"logprobs":null,"finish_reason":null}]}\n\n'

    def opening(self) -> list[bytes]:
        """The role, for each choice."""
        role = {"delta": {"role": "assistant", "content": ""}, "logprobs": None, "finish_reason": None}
        return [self._event({"choices": [{"index": n, **role}]}) for n in range(self.ask.n)]

    def word(self, text: str) -> dict[str, Any]:
        """A word as the difference to the message so far."""
        return {"delta": {"content": text}}

    def message(self, text: str) -> dict[str, Any]:
        """The whole message."""
        return {"message": {"role": "assistant", "content": text}}

    def logprobs(self, draft: Draft) -> dict[str, Any]:
        """A list with one entry for the last word."""
        best = draft.candidates(max(1, self.ask.top_logprobs), self.noise)
        found = [{"token": f"token_id:{token}", "logprob": value, "bytes": None} for token, value in best.items()]
        return {"content": [{**found[0], "top_logprobs": found[: self.ask.top_logprobs]}]}

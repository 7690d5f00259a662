"""What a request's body tells, read once: model, stream, size and the keys of its prompt.

Only the members that decisions need are decoded (:mod:`kveik.router.body_kinds`). What makes the
prompt stays JSON as the client wrote it: a slice of the body, hashed as it is. So the keys cover every
part of every message (roles, names, tool calls, images), whatever a chat template makes of
them; clients that write the same messages in different ways get different keys, which costs a hit and
nothing else. What templates render before the messages (tools, a system prompt of its own) stands before
them here too. Whatever else changes the rendered prompt, such as model, template options and
cache salt, goes into the seed and thereby changes all keys.

Only what is read is checked: for the rest, engines have the better messages.
"""

import contextlib
import re
from typing import Final

import msgspec
import xxhash
from msgspec import Raw

from kveik.errors import RequestError
from kveik.router.body_kinds import KINDS, NOTHING, Body, BodyKind, Chat, Generation, Number
from kveik.router.facts import RequestFacts
from kveik.router.prefix_keys import SEED_BYTES, PrefixHasher

#: Bytes of a prompt's JSON that make one token, where the body has no token ids.
TOKEN_BYTES: Final = 4
#: Tokens that an image or a sound counts as, whatever its size.
MEDIA_TOKENS: Final = 1000
#: Smaller prompts aren't searched for images: hashed as text they cost little.
MEDIA_SEARCH_BYTES: Final = 32 << 10
MEDIA_BYTES_MIN: Final = 512
#: Places that look like media, of which a prompt's beginning is searched.
MEDIA_MARKS_MAX: Final = 1000
#: In larger bodies a wrong value is not looked for, only named.
SHOWN_BODY_BYTES_MAX: Final = 1 << 20
_SAMPLE_BYTES: Final = 512
SEEDS_KEPT: Final = 1024
#: Larger numbers of tokens are cut to this.
TOKENS_MAX: Final = 1 << 40

_MEDIA_MARKS: Final = (b";base64,", b'"data":"', b'"data": "')
_QUOTE: Final = 0x22
_BRACKET: Final = 0x5B
_DIGITS: Final = frozenset(b"0123456789")
_FORM_MODEL: Final = re.compile(rb'name="model"\r\n\r\n([^\r\n]{1,512})\r\n')
_FIELD: Final = re.compile(r"`\$\.([^.`\[\]]+)")
_EXPECTED: Final = {
    "model": "text",
    "stream": "true or false",
}
_any_body: Final = msgspec.json.Decoder(Body).decode
_members: Final = msgspec.json.Decoder(dict[str, Raw]).decode


class PromptReader:
    """Reads bodies. Readers whose hashers have the same secret give the same keys."""

    __slots__ = ("_hasher", "_seeds")

    def __init__(self, hasher: PrefixHasher | None = None) -> None:
        self._hasher = hasher or PrefixHasher()
        self._seeds: dict[tuple[bytes, str], bytes] = {}

    def __call__(self, target: bytes, body: bytes) -> RequestFacts:
        """The facts of one request.

        ``target`` is its path, with or without a query. Where the path is unknown no body is wrong, and
        there are no keys. Raises :class:`RequestError` for a body that isn't a JSON object in UTF-8, or in
        which a member that is read has the wrong type.
        """
        kind = KINDS.get(target) or KINDS.get(target.partition(b"?")[0].rstrip(b"/"))
        if kind is None:
            return _facts_of_unknown(body)
        read = _decoded(kind, body)
        model = read.model or ""
        seed = self._seed(kind, model, kind.seeds(read))
        text = seed + kind.prompt(read)
        first = text[SEED_BYTES] if len(text) > SEED_BYTES else 0
        if first not in kind.begins:
            _check_absent(kind, text)
        tokens = _token_ids(text) if first == _BRACKET and kind.takes_token_ids else 0
        before = kind.before(read)
        if before != _NOTHING_BEFORE:
            text = b"".join((seed, *filter(_is_there, before), text[SEED_BYTES:]))
        stream = read.stream is True
        resumable = (
            stream
            and isinstance(read, Generation)
            and (first == _QUOTE or isinstance(read, Chat))
            and read.is_resumable
        )
        media = 0
        if len(text) > MEDIA_SEARCH_BYTES and not tokens:
            text, media = without_media(text)
        return RequestFacts(
            model,
            stream,
            len(text) - SEED_BYTES,
            tokens or _estimated_tokens(text) + media * MEDIA_TOKENS,
            _limit(kind.max_tokens(read)),
            self._hasher.keys(text),
            resumable=resumable,
        )

    def _seed(self, kind: BodyKind, model: str, members: tuple[Raw, ...]) -> bytes:
        """The seed of all keys. Those of bodies without special members are few, and kept."""
        plain = members == kind.no_seeds
        seed = self._seeds.get((kind.name, model)) if plain else None
        if seed is None:
            seed = self._hasher.seed(b"\0".join((kind.name, model.encode(), *members)))
            if plain:
                if len(self._seeds) >= SEEDS_KEPT:
                    self._seeds.clear()
                self._seeds[kind.name, model] = seed
        return seed


_NOTHING_BEFORE: Final = (NOTHING, NOTHING)
_NOT_THERE: Final = frozenset((b"", b"null", b"[]", b'""'))


def _is_there(value: Raw) -> bool:
    return bytes(value) not in _NOT_THERE


def _check_absent(kind: BodyKind, text: bytes) -> None:
    """A prompt that isn't there, or null, is left to the engine, which says what it wants instead."""
    if text[SEED_BYTES:] not in (b"", b"null"):
        raise _wrong_type(kind.prompt_name, text[SEED_BYTES:], kind.expected)


def _token_ids(text: bytes) -> int:
    """How many token ids a list (or a list of lists) has; 0 if it holds something else."""
    start = text[SEED_BYTES : SEED_BYTES + 64].lstrip(b"[ \t\r\n")
    return text.count(b",") + 1 if start and start[0] in _DIGITS else 0


def _estimated_tokens(text: bytes) -> int:
    size = max(0, len(text) - SEED_BYTES)
    if size > _SAMPLE_BYTES:
        sample = text[len(text) // 2 : len(text) // 2 + _SAMPLE_BYTES]
        if b"\\u" in sample:  # such a character has six bytes here, but three in UTF-8
            size -= 3 * sample.count(b"\\u") * size // len(sample)
    return size // TOKEN_BYTES


def _limit(tokens: Number) -> int:
    if tokens is None or tokens <= 0:
        return 0
    return int(tokens) if tokens < TOKENS_MAX else TOKENS_MAX


def without_media(text: bytes) -> tuple[bytes, int]:
    """The text with a digest in place of each image or sound that is written out in it, and their number."""
    pieces: list[bytes] = []
    start = media = 0
    nexts = [text.find(mark) for mark in _MEDIA_MARKS]
    for _ in range(MEDIA_MARKS_MAX):
        found = [(at, mark) for at, mark in zip(nexts, _MEDIA_MARKS, strict=True) if at >= 0]
        if not found:
            break
        at, mark = min(found)
        begin = at + len(mark)
        end = text.find(b'"', begin)
        if end < 0:
            break
        if end - begin >= MEDIA_BYTES_MIN:
            pieces += (text[start:begin], xxhash.xxh3_128_digest(memoryview(text)[begin:end]))
            start, media = end, media + 1
        nexts = [text.find(m, end) if 0 <= n < end else n for n, m in zip(nexts, _MEDIA_MARKS, strict=True)]
    return b"".join((*pieces, text[start:])), media


def _decoded(kind: BodyKind, body: bytes) -> Body:
    try:
        read: Body = kind.decode(body)
        if not body.isascii():
            body.decode()  # what was not decoded above must be sound too
    except msgspec.ValidationError as error:
        raise _wrong_member(body, str(error)) from None
    except msgspec.DecodeError as error:
        raise RequestError(f"the body is not valid JSON: {error}") from None
    except UnicodeDecodeError as error:
        raise RequestError(f"the body is not valid UTF-8: {error.reason} at byte {error.start}") from None
    except RecursionError:
        raise RequestError("the body is not accepted: its JSON is nested too deeply") from None
    return read


def _wrong_member(body: bytes, why: str) -> RequestError:
    """The error for a member of the wrong type, in our words. ``why``: in msgspec's."""
    field = _FIELD.search(why)
    if field is None:
        return RequestError("the body is not a JSON object")
    name = field.group(1)
    value = b"of another type"
    if len(body) <= SHOWN_BODY_BYTES_MAX:
        with contextlib.suppress(msgspec.DecodeError, RecursionError):  # something else is wrong behind it
            value = bytes(_members(body)[name])
    return _wrong_type(name, value, _EXPECTED.get(name, "a number"))


def _wrong_type(name: str, value: bytes, expected: str) -> RequestError:
    shown = value[:60].decode("utf8", "replace") + ("..." if len(value) > 60 else "")
    return RequestError(f"{name} is {shown}, expected {expected}", param=name)


def _facts_of_unknown(body: bytes) -> RequestFacts:
    """Model and stream of a body of which nothing else is known; it may be no JSON at all."""
    if body[:2] == b"--":
        form = _FORM_MODEL.search(body)
        return RequestFacts(model=form.group(1).decode("utf8", "replace") if form else "")
    try:
        read: Body = _any_body(body)
    except (msgspec.DecodeError, RecursionError):
        return RequestFacts()
    return RequestFacts(read.model or "", read.stream is True)

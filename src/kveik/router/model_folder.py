"""From a request's body to the token ids that its engine will compute, by the model's own files.

A model's folder has the tokenizer (``tokenizer.json``) and the chat template (``chat_template.jinja``, or in
``tokenizer_config.json``). Whether an engine really does the same is checked when it registers:
:mod:`kveik.router.parity`.
"""

import json
from array import array
from pathlib import Path
from typing import Any

import xxhash

from kveik.errors import RenderError
from kveik.router.chat_template import ChatTemplate
from kveik.router.conversation import Ids, Text, read_prompt
from kveik.router.facts import TokenPrompt
from kveik.router.rendering import Unfinished
from kveik.router.tokenization import Tokenization, Tokenizers

_FILE_MAX_BYTES = 256 << 20
_NAMED_TOKENS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


class Rendering:
    """What one model's folder makes of bodies. Loading reads files, which is for a thread."""

    def __init__(self, folder: Path, tokenizers: Tokenizers) -> None:
        """Raises :class:`RenderError` for a folder without a tokenizer; without a template, chats are not rendered."""
        config = _json(folder / "tokenizer_config.json")
        self._tokens = Tokenization(folder / "tokenizer.json", tokenizers)
        special = {name: text for name in _NAMED_TOKENS if (text := _token_text(config.get(name)))}
        sources = _templates(folder, config)
        self._templates = {name: ChatTemplate(source, special) for name, source in sources.items()}
        digest = xxhash.xxh3_128(_bytes(folder / "tokenizer.json"))
        digest.update(json.dumps([special, sources], sort_keys=True).encode())
        self._fingerprint = digest.hexdigest()
        self.folder = folder

    def __repr__(self) -> str:
        return f"Rendering({self.folder}, {self._fingerprint[:8]}, {self._tokens!r})"

    @property
    def fingerprint(self) -> str:
        """Equal for folders that render and tokenize alike."""
        return self._fingerprint

    def begin(self, target: bytes, body: bytes) -> TokenPrompt | Unfinished:
        """Read and render a body. Takes some 100 microseconds for 16 KB. Raises :class:`RenderError`."""
        prompt, salt = read_prompt(target, body)
        if isinstance(prompt, Ids):
            return TokenPrompt(array("I", prompt.ids).tobytes(), salt)
        if isinstance(prompt, Text):
            draft = self._tokens.draft(prompt.text, special_tokens=prompt.special_tokens)
            return Unfinished(draft, salt)
        template = self._templates.get("tool_use") if prompt.tools else None
        template = template or self._templates.get("default")
        if template is None:
            raise RenderError("the model's folder has no chat template")
        return Unfinished(self._tokens.draft(template.render(prompt), special_tokens=prompt.special_tokens), salt)

    def encode(self, unfinished: Unfinished) -> None:
        """Tokenize what is missing, which for long prompts is for a thread."""
        unfinished.encoded = self._tokens.encode(unfinished.draft)

    def finish(self, unfinished: Unfinished) -> TokenPrompt:
        """The prompt, after :meth:`encode`; its pieces are remembered."""
        draft, encoded = unfinished.draft, unfinished.encoded
        if encoded:
            self._tokens.remember(draft, encoded)
        return TokenPrompt(self._tokens.packed(draft, encoded), unfinished.salt, self._fingerprint)

    def prompt(self, target: bytes, body: bytes) -> TokenPrompt:
        """All at once. Raises :class:`RenderError`."""
        begun = self.begin(target, body)
        if isinstance(begun, TokenPrompt):
            return begun
        self.encode(begun)
        return self.finish(begun)

    def text_of(self, token: int) -> str:
        """The text of one token, for people."""
        return self._tokens.text_of(token)


def _bytes(file: Path) -> bytes:
    try:
        if file.stat().st_size > _FILE_MAX_BYTES:
            raise RenderError(f"{file} is larger than {_FILE_MAX_BYTES >> 20} MiB")
        return file.read_bytes()
    except OSError as error:
        raise RenderError(f"cannot read {file}: {error.strerror or error}") from error


def _json(file: Path) -> dict[str, Any]:
    if not file.exists():
        return {}
    try:
        read = json.loads(_bytes(file))
    except ValueError as error:
        raise RenderError(f"{file} is not valid JSON: {error}") from error
    return read if isinstance(read, dict) else {}


def _token_text(token: object) -> str:
    """Special tokens are written as text, or as an object with their text in it."""
    text = token.get("content") if isinstance(token, dict) else token
    return text if isinstance(text, str) else ""


def _templates(folder: Path, config: dict[str, Any]) -> dict[str, str]:
    """The folder's chat templates by name: ``default``, and for some models another one for tools."""
    file = folder / "chat_template.jinja"
    if file.exists():
        return {"default": _bytes(file).decode("utf8", "replace")}
    written = config.get("chat_template") or _json(folder / "chat_template.json").get("chat_template")
    if isinstance(written, str):
        return {"default": written}
    if isinstance(written, list):
        return {
            one["name"]: one["template"]
            for one in written
            if isinstance(one, dict) and {"name", "template"} <= one.keys()
        }
    return {}

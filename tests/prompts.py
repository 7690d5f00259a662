"""Prompts for tests: bodies as clients send them, and a memory that looks at them one after the other."""

import json
import random
from typing import Any

from kveik.router.prompt_memory import Found, PromptMemory, Seen

CHAT = b"/v1/chat/completions"
_VOCABULARY = (
    "engine cache block prompt token tier answer request prefix router table river stone light paper window garden "
    "number letter morning harbour machine copper thread signal bridge market violet"
)
_WORDS = _VOCABULARY.split()


def words(count: int, seed: int = 0) -> str:
    """So many words, the same for a seed; about six bytes each."""
    chosen = random.Random(seed)
    return " ".join(chosen.choice(_WORDS) for _ in range(count))


def message(role: str, content: Any, **more: Any) -> dict[str, Any]:
    """One message."""
    return {"role": role, "content": content, **more}


def turns(count: int, seed: int = 0) -> list[dict[str, Any]]:
    """A conversation of so many questions with their answers."""
    return [
        message(role, words(60, 1000 * seed + 2 * turn + side))
        for turn in range(count)
        for side, role in enumerate(("user", "assistant"))
    ]


def tool(name: str, size: int = 40) -> dict[str, Any]:
    """A tool with a description of so many words."""
    schema = {"type": "object", "properties": {"path": {"type": "string"}}}
    described = {"name": name, "description": words(size, len(name) + ord(name[0])), "parameters": schema}
    return {"type": "function", "function": described}


class Prompts:
    """A memory and what it found of each prompt."""

    def __init__(self, prompts_max: int = 256, **given: Any) -> None:
        self.memory = PromptMemory(prompts_max, 7, **given)
        self.found: list[Found | None] = []

    def send(self, target: bytes = CHAT, *, client: str = "a", model: str = "m", cached: int = -1, **body: Any) -> None:
        """Have it look at a request."""
        raw = json.dumps({"model": model, **body}, ensure_ascii=False).encode()
        seen = Seen(target, raw, model, client, f"r{len(self.found)}", -1, cached, None)
        self.found.append(self.memory.look(seen).found)

    def chat(self, *messages: dict[str, Any], **body: Any) -> Found | None:
        """Have it look at a chat, and say what it found."""
        self.send(messages=list(messages), **body)
        return self.last

    @property
    def last(self) -> Found | None:
        """What it found in the last prompt."""
        return self.found[-1]

    @property
    def kinds(self) -> set[str]:
        """Kinds of all breaks."""
        return {found.kind for found in self.found if found is not None}

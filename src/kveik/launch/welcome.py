"""What people need to know once a fleet runs: where it is, a request that works when pasted, where logs are. Pure."""

import json
import shlex
from collections.abc import Sequence
from pathlib import Path

_QUESTION = "Say hello in three languages."


def example(url: str, model: str, *, chat: bool, key: bool) -> str:
    """A request for ``curl``. ``chat``: the model has a chat template; ``key``: the router asks for an API key."""
    if chat:
        path, body = "chat/completions", {"messages": [{"role": "user", "content": _QUESTION}]}
    else:
        path, body = "completions", {"prompt": "Once upon a time"}  # type: ignore[dict-item]
    words = ["curl", f"{url}/v1/{path}", "-H", "content-type: application/json"]
    if key:
        words += ["-H", "authorization: Bearer YOUR-KEY"]
    words += ["-d", json.dumps({"model": model, **body, "max_tokens": 64})]
    return shlex.join(words)


def welcome(url: str, request: str, logs: Path, *, config: Path, detached: bool) -> Sequence[str]:
    """The lines."""
    where = (
        "" if config.name == "kveik.toml" and config.parent == Path.cwd() else f" --config {shlex.quote(str(config))}"
    )
    end = f"kveik down{where}" if detached else "Ctrl-C"
    return (
        f"the fleet is ready at {url}",
        "",
        "try it:",
        f"  {request}",
        "",
        f"how it is:  kveik status{where}, or {url}/dashboard",
        f"logs:       {logs}, or kveik logs{where}",
        f"to end it:  {end}",
    )


def has_chat_template(model: Path) -> bool:
    """Whether a model's folder has a template for chats."""
    if (model / "chat_template.jinja").is_file():
        return True
    try:
        config = json.loads((model / "tokenizer_config.json").read_text(encoding="utf8"))
    except (OSError, ValueError):
        return False
    return isinstance(config, dict) and bool(config.get("chat_template"))

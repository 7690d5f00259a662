"""The ids that one request has: the client's, and those that vLLM makes of it. Pure.

vLLM 0.32 takes the client's from ``X-Request-Id`` (``entrypoints/serve/engine/serving.py``), puts the kind of the
request before it, behind it for completions the number of the prompt, and eight random digits
(``v1/engine/input_processor.py``); several answers to one prompt are numbered in front
(``v1/engine/parallel_sampling.py``). Of ``/v1/responses`` it makes an id of its own, which stands in the answer.
"""

import re

_ENGINES_ID = re.compile(r"(?:\d+_)?(chatcmpl-|cmpl-|generate-tokens-)?(.+?)-[0-9a-f]{8}")
_PROMPT_NUMBER = re.compile(r"-\d+$")


def client_id(engines_id: str) -> str:
    """The client's id in an engine's id; the whole id if it has no form that is known."""
    match = _ENGINES_ID.fullmatch(engines_id)
    if match is None:
        return engines_id
    kind, name = match.groups()
    return _PROMPT_NUMBER.sub("", name) if kind == "cmpl-" else name


def is_of(engines_id: str, asked: str) -> bool:
    """Whether ``asked`` names this request of the engine: by the engine's id, the client's or the answer's."""
    if asked in (engines_id, client_id(engines_id)):
        return True
    match = _ENGINES_ID.fullmatch(engines_id)
    return match is not None and asked in (f"{match[1] or ''}{client_id(engines_id)}", engines_id.rpartition("-")[0])

"""What breaks a prompt's beginning, in words: kinds, what each means, and what to do about it."""

from dataclasses import dataclass
from typing import Final

from kveik.router.text_shapes import DATE, ID, NUMBER, WHITESPACE

TOOLS_ORDER: Final = "tools-order"
TOOLS_CHANGED: Final = "tools-changed"
REASONING_DIFFERS: Final = "reasoning"
TEMPLATE: Final = "template"
SYSTEM_DIFFERS: Final = "system"
HISTORY: Final = "history"
INSERTED: Final = "inserted"
MEDIA_FIRST: Final = "media"
OPTIONS_DIFFER: Final = "options"
TEXT_DIFFERS: Final = "text"


@dataclass(frozen=True, slots=True)
class BreakKind:
    """``meaning``: what was seen. ``remedy``: what whoever writes the prompts can do."""

    name: str
    meaning: str
    remedy: str


_ROWS = (
    BreakKind(
        DATE, "a date or a time changes",
        "Move it to the end of the prompt, behind all that stays the same, or write no more of it than is needed: the "
        "day, not the second.",
    ),
    BreakKind(
        ID, "an id, a nonce or a hash changes",
        "Leave it out, or send it in a header or in `metadata`; if the model needs it, put it at the end.",
    ),
    BreakKind(NUMBER, "a number or a counter changes", "Move it to the end of the prompt, or leave it out."),
    BreakKind(WHITESPACE, "only white space changes", "Build the prompt in one place, so that it is always the same."),
    BreakKind(
        TOOLS_ORDER, "the same tools in another order, or their members",
        "Sort the tools by name and write their members in one order before each request.",
    ),
    BreakKind(
        TOOLS_CHANGED, "other tools, or other descriptions",
        "Give all requests of a conversation the same tools; choose among them by `tool_choice`.",
    ),
    BreakKind(
        REASONING_DIFFERS, "reasoning of earlier answers is left out, or changes",
        "Send earlier answers back as they came, with their reasoning, or never with it: not now one, then the other.",
    ),
    BreakKind(
        TEMPLATE, "the chat template writes earlier messages otherwise than when they were new",
        "The template, not the client, does it (most drop reasoning of earlier turns): use its switch that keeps "
        "reasoning, such as `chat_template_kwargs`, if it has one.",
    ),
    BreakKind(
        SYSTEM_DIFFERS, "the system prompt changes",
        "Keep one system prompt for a conversation, and put what changes into its last message.",
    ),
    BreakKind(
        HISTORY, "earlier messages are dropped",
        "Shorten a conversation seldom and by much, rather than by one message with each turn.",
    ),
    BreakKind(
        INSERTED, "something is put before messages that were there",
        "Add it at the end: what is put in the middle makes all that follows new.",
    ),
    BreakKind(
        MEDIA_FIRST, "an image, a sound or a file stands before text that stays the same",
        "Put the text that stays the same first, and the image after it.",
    ),
    BreakKind(
        OPTIONS_DIFFER, "the same prompt with another cache salt or other options of the template",
        "Use one `cache_salt` for all requests that may share, and the same options.",
    ),
    BreakKind(
        TEXT_DIFFERS, "text that changes stands before text that stays the same",
        "Put what many requests share (instructions, documents, examples) first, and what changes behind it.",
    ),
)  # fmt: skip

#: All kinds by name.
KINDS = {row.name: row for row in _ROWS}

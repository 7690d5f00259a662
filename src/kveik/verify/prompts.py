"""Prompts of exact token lengths in English and Chinese, from sentences of our own and a seed."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from kveik.errors import VerifyError

LANGUAGES = ("en", "zh")

_ENGLISH = (
    ("The old ferryman", "A careful librarian", "Our youngest engineer", "The night baker", "Nobody in the village",
     "The visiting botanist", "A retired judge", "The lighthouse keeper", "My neighbour's daughter", "The clock maker"),
    ("repaired", "wrote about", "remembered", "carried", "painted", "questioned", "sold", "discovered", "weighed",
     "described"),
    ("the broken bridge", "seven barrels of rye", "a map of the northern islands", "the recipe for dark bread",
     "an unfinished letter", "the brass telescope", "two hundred glass bottles", "the history of the harbour",
     "a very small machine", "the rules of the guild"),
    ("before the first frost.", "while it rained.", "and told no one.", "for less than it was worth.",
     "in the spring of that year.", "because the river had risen.", "with surprising patience.",
     "although the market was closed.", "as the fog came in.", "and began again the next day."),
)  # fmt: skip
_CHINESE = (
    ("老船夫", "图书馆的管理员", "最年轻的工程师", "夜里的面包师", "村里的医生", "远道而来的客人", "退休的法官",
     "守灯塔的人", "邻居家的女儿", "修钟表的师傅"),
    ("修好了", "写下了", "想起了", "搬走了", "画出了", "打听过", "卖掉了", "发现了", "称过了", "描述了"),
    ("那座断桥", "七桶黑麦", "北方群岛的地图", "黑面包的做法", "一封没写完的信", "铜制的望远镜", "两百个玻璃瓶",
     "港口的历史", "一台很小的机器", "行会的规矩"),
    ("，那是初霜之前的事。", "，外面正下着雨。", "，却没有告诉任何人。", "，价钱比它值的少。", "，就在那年春天。",
     "，因为河水涨了。", "，耐心得让人吃惊。", "，虽然集市已经关了。", "，雾正慢慢漫上来。", "，第二天又从头开始。"),
)  # fmt: skip
_PARTS = {"en": (_ENGLISH, " "), "zh": (_CHINESE, "")}

#: Text to token ids, with the special tokens that the model wants first.
Tokenize = Callable[[str], tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class Prompt:
    """One prompt. ``name`` is its language and length, for example ``zh-129``."""

    name: str
    language: str
    token_ids: tuple[int, ...]

    @property
    def tokens(self) -> int:
        """Its length."""
        return len(self.token_ids)


def text_of(language: str, sentences: int, seed: int) -> str:
    """That many sentences; the same seed gives the same text."""
    parts, glue = _PARTS[language]
    chooser = random.Random(f"{language}-{seed}")
    space = " " if glue else ""
    return space.join(glue.join(chooser.choice(part) for part in parts) for _ in range(sentences))


def build_prompt(tokenize: Tokenize, language: str, tokens: int, seed: int) -> Prompt:
    """A prompt of exactly ``tokens`` token ids. Raises VerifyError when the tokenizer gives too few."""
    sentences = tokens // 8 + 1
    for _ in range(6):
        ids = tokenize(text_of(language, sentences, seed))
        if len(ids) >= tokens:
            return Prompt(f"{language}-{tokens}", language, ids[:tokens])
        sentences *= 2
    raise VerifyError(f"{sentences // 2} {language} sentences gave only {len(ids)} tokens, expected {tokens}")


def boundary_lengths(block_tokens: int, window_tokens: int, limit_tokens: int) -> list[int]:
    """Prompt lengths around the places where caches go wrong, in order, none over ``limit_tokens``.

    Around one and two blocks; a partly filled block after several full ones; the same around the
    sliding window (0: none), where a hit needs only the last blocks of a window group.
    """
    block = block_tokens
    lengths = {
        block - 1,
        block,
        block + 1,
        2 * block,
        2 * block + 1,
        4 * block + block // 2,
        9 * block + 1,
    }
    if window_tokens:
        window = window_tokens
        lengths |= {
            window - 1,
            window,
            window + 1,
            window + block,
            window + block + 1,
            2 * window + block // 2,
        }
    return sorted(length for length in lengths if 2 <= length <= limit_tokens)


def build_prompts(tokenize: Tokenize, languages: Sequence[str], lengths: Sequence[int], seed: int) -> list[Prompt]:
    """One prompt for each language and length; no two share their first sentences."""
    return [
        build_prompt(tokenize, language, tokens, seed + 1000 * index)
        for index, tokens in enumerate(lengths)
        for language in languages
    ]

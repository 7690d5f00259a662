"""How fast an engine computes prompts, learned from when its answers begin.

An engine computes prompts in the order in which they came, so the time that one took begins when it was sent or
when the one before it was answered, whichever is later. Tokens and seconds are summed up apart: of prompts that
are computed together the first answer takes all the time and the others none, and only the sums are right. So an
engine shows its rate while it is busy too. That matters most where the rate was learned wrong (a prompt that it
had cached although nobody knew counts as computed in no time): such an engine seems quick, gets the most requests,
is never idle again, and would seem quick for good.
"""

from typing import Final

#: Shorter prompts tell more of what each request takes than of the rate.
TOKENS_MIN: Final = 256
#: What is left of all that was seen before with each new prompt: the last ten count most.
KEPT: Final = 0.9
#: A prompt that took less than this part of what its tokens take, or than so many seconds, was computed together with
#: the one before it: it adds its tokens, and takes no weight from what was seen before, which holds the time of both.
TOGETHER: Final = 0.1
TOGETHER_S: Final = 0.005
#: One prompt counts as at most so many times as slow as those before: an engine that stood still for a minute is not
#: slow, and would hardly be asked again to show it. The second one in a row is believed.
SLOWER_MAX: Final = 8.0
#: The first prompt has the weight of so many seconds at most: it may have waited for the engine to warm up.
FIRST_S: Final = 1.0
#: A prompt takes at least so long: clocks are coarse.
SECONDS_MIN: Final = 1e-3


class PrefillRate:
    """Of one engine. ``tokens_s``: prompt tokens a second, 0 while unknown. Times in seconds of one monotonic clock."""

    __slots__ = ("_answered_s", "_seconds", "_tokens", "_was_slow", "tokens_s")

    def __init__(self) -> None:
        self._tokens = self._seconds = self._answered_s = self.tokens_s = 0.0
        self._was_slow = False

    def __repr__(self) -> str:
        return f"PrefillRate({self.tokens_s:.0f} tokens/s)"

    def began(self, tokens: int, sent_s: float, now_s: float) -> float:
        """A stream begins for a prompt that was sent then; how long it took the engine to compute.

        ``tokens``: how many it should have computed. Better than nothing, while nothing is known.
        """
        took_s = max(now_s - max(sent_s, self._answered_s), SECONDS_MIN)
        self._answered_s = now_s
        if not self.tokens_s and tokens >= TOKENS_MIN:
            self.tokens_s = tokens / took_s
        return took_s

    def learn(self, tokens: int, took_s: float) -> None:
        """So many tokens of a prompt were computed in that time, by the best that is known of them in the end."""
        if tokens < TOKENS_MIN:
            return
        if not self._tokens:
            weight = min(1.0, FIRST_S / took_s)
            self._tokens, self._seconds = weight * tokens, weight * took_s
        else:
            kept, usual_s = 1.0, tokens * self._seconds / self._tokens
            if took_s > max(TOGETHER * usual_s, TOGETHER_S):
                kept, slow = KEPT, took_s > SLOWER_MAX * usual_s
                if slow and not self._was_slow:
                    took_s = SLOWER_MAX * usual_s
                self._was_slow = slow
            self._tokens = kept * self._tokens + tokens
            self._seconds = kept * self._seconds + took_s
        self.tokens_s = self._tokens / self._seconds

    def forget(self) -> None:
        """It may be another machine by now."""
        self._tokens = self._seconds = self.tokens_s = 0.0
        self._was_slow = False

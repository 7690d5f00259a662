"""When the engine's scheduling thread rests, so that a load that all wait for gets the processor. Pure.

While nothing can be computed before a load ends, vLLM 0.32 goes on with empty steps, one in about a millisecond
(``vllm/v1/engine/core.py``, ``_process_engine_step``). In each of them the scheduler's process turns in a loop until
the workers answer, and the workers in one until the next step comes (``shm_broadcast.py``): together two busy cores,
and for a worker's copy threads one more who wants the interpreter's lock.
"""


class Rest:
    """For one engine. ``rest_s`` is how long it rests before an empty step, 0 for never.

    ``steps_ahead`` is how many steps the engine plans before the first of them has ended: only after that many empty
    ones in a row nothing can be under way on its devices, whose tokens would come out later for it.
    """

    def __init__(self, rest_s: float, steps_ahead: int) -> None:
        self._rest_s = rest_s
        self._steps_ahead = steps_ahead
        self._empty = 0

    def before_step(self, tokens: int, jobs: int, loading: int) -> float:
        """Seconds to rest before a step with so many tokens and jobs of ours, while so many requests are loaded."""
        self._empty = 0 if tokens or jobs else self._empty + 1
        return self._rest_s if loading and self._empty > self._steps_ahead else 0.0

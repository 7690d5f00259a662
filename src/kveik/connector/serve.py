"""``vllm serve`` as a module, for ranks without an API server (``--headless``), and started sooner.

vLLM's own module for API servers knows no headless ranks, and its command asks for the version of a package named
``vllm``, which the CPU build is not.

Most of an engine's start is imports, in three processes one after the other (7 to 9 s of a core each). Processes that
vLLM spawns import the module that was started: this one has nothing of the API server, which they do not need. And
imports make a million objects and hardly any garbage, through which the collector would go again and again.
"""

import gc
import importlib
from collections.abc import Iterator
from contextlib import contextmanager

#: What cores and workers of an engine need anyway.
OF_CHILDREN = ("vllm.v1.engine.core", "vllm.v1.executor.multiproc_executor", "kveik.connector.vllm")
_OF_SERVERS = "kveik.connector.serving"


@contextmanager
def uncollected() -> Iterator[None]:
    """No collections; what is there at the end stays out of later ones, too, as all does when vLLM has started."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def main() -> None:
    """Serve as the arguments say, until a signal."""
    with uncollected():
        serving = importlib.import_module(_OF_SERVERS)
    serving.main()


if __name__ == "__main__":
    main()
elif __name__ == "__mp_main__":  # spawned by the above
    with uncollected():
        for name in OF_CHILDREN:
            importlib.import_module(name)

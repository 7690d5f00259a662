"""One copy between two buffers, at memory speed and without the GIL."""

import numpy as np


def copy_bytes(target: memoryview, source: memoryview) -> None:
    """Copy ``source`` over ``target``; both contiguous and equally long."""
    np.copyto(np.frombuffer(target, np.uint8), np.frombuffer(source, np.uint8))

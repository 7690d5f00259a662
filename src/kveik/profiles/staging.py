"""Staging memory of openYuanrong datasystem's FFTS copies: what a call needs, and which path it takes. Pure.

Rules of datasystem 0.9.1 (``acl_parallel_ffts_executor.cpp``, shards; ``device_resource_manager.h``, pools): a call's
objects are cut into contiguous shards of whole objects, near to equal bytes; each shard has two buffers of its largest
object on the device. A call that needs more than the pool has is copied serially, without a word.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from kveik.errors import ConfigError
from kveik.profiles.figure import MIB, Figure, size

DEVICE_POOL_BYTES = 100 * MIB
HOST_POOL_BYTES = 2560 * MIB
#: Below so many bytes a call is serial: copies to the device, and back.
LEAST_BYTES = {"h2d": 128 * MIB, "d2h": 48 * MIB}
_SOURCE = "openYuanrong datasystem 0.9.1, acl_parallel_ffts_executor.cpp"


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One call: sizes of its objects in bytes, in order, and the settings of the client process."""

    sizes: Sequence[int]
    workers: int = 4
    least_bytes: int = LEAST_BYTES["h2d"]
    device_pool_bytes: int = DEVICE_POOL_BYTES
    host_pool_bytes: int = HOST_POOL_BYTES
    huge: bool = False

    def __post_init__(self) -> None:
        if not self.sizes or min(self.sizes) < 1:
            raise ConfigError("a call has at least one object, and each at least one byte")
        if not 1 <= self.workers <= 16:
            raise ConfigError(f"workers are {self.workers}, expected 1 to 16")


def shards(sizes: Sequence[int], workers: int) -> list[list[int]]:
    """How objects are cut: each shard takes the next ones until it is nearest to its share of what is left."""
    count, remaining, at, found = min(workers, len(sizes)), sum(sizes), 0, []
    for number in range(count):
        left = count - number
        share = math.ceil(remaining / left)
        end, taken = at, 0
        while end < len(sizes) - (left - 1) and taken < share:
            if end > at and share - taken <= abs(taken + sizes[end] - share):
                break
            taken += sizes[end]
            end += 1
        found.append(list(sizes[at:end]))
        remaining -= taken
        at = end
    return found


def staging(call: Call) -> tuple[Figure, ...]:
    """What the call needs in both pools, and its path."""
    cut = shards(call.sizes, call.workers)
    largest = [max(shard) for shard in cut]
    serial, parallel = 2 * max(call.sizes), 2 * sum(largest)
    host = 0 if call.huge else sum(call.sizes)
    path, why = _path(call, parallel)
    needed = parallel if path == "parallel" else serial
    sizes = " + ".join(size(one) for one in largest)
    return (
        Figure(
            "shards",
            len(cut),
            "shards",
            "the lesser of workers and objects",
            f"{call.workers}, {len(call.sizes)}",
            _SOURCE,
        ),
        Figure(
            "device staging, parallel", parallel, "bytes", "2 x sum of each shard's largest object", f"2 x ({sizes})"
        ),
        Figure("device staging, serial", serial, "bytes", "2 x largest object", f"2 x {size(max(call.sizes))}"),
        Figure("host staging", host, "bytes", "sum of objects; none if both ways are huge_ffts", size(sum(call.sizes))),
        Figure("path", path, "", "parallel unless something stands against it", why),
        Figure(
            "device pool is enough",
            _yes(needed <= call.device_pool_bytes),
            "",
            "needed <= DS_DEVICE_ACL_SIZE",
            f"{size(needed)} <= {size(call.device_pool_bytes)}",
        ),
        Figure(
            "host pool is enough",
            _yes(host <= call.host_pool_bytes),
            "",
            "needed <= DS_HOST_ACL_SIZE; or D2H ends with out of memory, and H2D copies directly",
            f"{size(host)} <= {size(call.host_pool_bytes)}",
        ),
    )


def _path(call: Call, parallel: int) -> tuple[str, str]:
    total = sum(call.sizes)
    if call.workers <= 1:
        return "serial", "one worker"
    if len(call.sizes) < call.workers:
        return "serial", f"{len(call.sizes)} objects are less than {call.workers} workers"
    if total < call.least_bytes:
        return "serial", f"{size(total)} are less than {size(call.least_bytes)}"
    if parallel > call.device_pool_bytes:
        return "serial", f"staging of {size(parallel)} is more than DS_DEVICE_ACL_SIZE, {size(call.device_pool_bytes)}"
    return "parallel", "nothing stands against it"


def _yes(holds: bool) -> str:
    return "yes" if holds else "no"

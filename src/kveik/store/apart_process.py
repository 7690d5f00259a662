"""The process of a store apart: ``python -m kveik.store.apart_process CHANNEL MEMORY PARENT``.

CHANNEL is a socket to the agent, MEMORY a file to map (or -1), PARENT the agent's process number. It
serves one call at a time, until the agent closes the channel; when the agent dies, the kernel ends it at
once, so that it never writes into an arena that another agent has taken over.
"""

import importlib
import os
import sys
import threading
from collections.abc import Callable
from multiprocessing.connection import Connection

from kveik.clock import Deadline
from kveik.errors import KveikError
from kveik.kv.keys import BlockKey
from kveik.store.apart_wire import (
    INLINE,
    Answer,
    Call,
    Opened,
    Opening,
    decode_call,
    decode_opening,
    encode,
    packed,
)
from kveik.store.base import BlockStore, Status
from kveik.store.parent import die_with
from kveik.store.shared_memory import Mapping


def main(arguments: list[str]) -> int:
    """Open the store, say so, and serve."""
    channel_fd, memory_fd, parent = (int(argument) for argument in arguments)
    if not die_with(parent):
        return 0
    channel = Connection(channel_fd)
    opening = decode_opening(channel.recv_bytes())
    try:
        store = made(opening)
    except KveikError as error:
        channel.send_bytes(encode(Opened(str(error) or repr(error))))
        return 0
    memory = mapped(memory_fd, opening.memory_bytes) if memory_fd >= 0 else memoryview(b"")
    channel.send_bytes(encode(Opened()))
    serve(channel, store, memory)
    return 0


def mapped(memory_fd: int, size: int) -> memoryview:
    """The agent's memory, faulted in beside the first calls: a page's first touch costs as much as its copy."""
    mapping = Mapping(memory_fd, size)
    threading.Thread(target=mapping.populate, args=(threading.Event(),), daemon=True).start()
    return mapping.view


def made(opening: Opening) -> BlockStore:
    """The store that the agent wants. Raises what its maker raises."""
    module, _, function = opening.maker.partition(":")
    maker: Callable[..., BlockStore] = getattr(importlib.import_module(module), function)
    return maker(**opening.options)


def serve(channel: Connection, store: BlockStore, memory: memoryview) -> None:
    """Answer calls until the other end is closed. A fault of the store ends the process: the agent sees that."""
    while True:
        try:
            message = channel.recv_bytes()
        except (EOFError, ConnectionResetError):
            return
        channel.send_bytes(encode(answer_to(decode_call(message), store, memory)))


def answer_to(call: Call, store: BlockStore, memory: memoryview) -> Answer:
    """Carry out one call."""
    keys = [BlockKey(key) for key in call.keys]
    deadline = Deadline.after(call.seconds)
    match call.operation:
        case "lookup":
            return Answer(present=store.lookup(keys, deadline))
        case "get":
            buffers = [_buffer(memory, offset, length) for offset, length in call.places]
            results = store.get(keys, buffers, deadline)
            frames = [
                bytes(buffer[: result.bytes])
                for (offset, _), buffer, result in zip(call.places, buffers, results, strict=True)
                if offset == INLINE and result.status is Status.HIT
            ]
            return Answer(results=packed(results), frames=frames)
        case "put":
            sent = iter(call.frames)
            sealed = [
                memoryview(next(sent)) if offset == INLINE else memory[offset : offset + length]
                for offset, length in call.places
            ]
            return Answer(results=packed(store.put(keys, sealed, deadline)))
        case "delete":
            return Answer(results=packed(store.delete(keys)))
    raise ValueError(f"unknown operation {call.operation!r}")


def _buffer(memory: memoryview, offset: int, length: int) -> memoryview:
    return memoryview(bytearray(length)) if offset == INLINE else memory[offset : offset + length]


if __name__ == "__main__":
    code = main(sys.argv[1:])
    sys.stderr.flush()
    os._exit(code)  # nothing of a library's may hold up the end

"""The process that hosts Mooncake's client library, beside the agent.

``python -m kveik.store.mooncake_host PLAN`` maps the agent's memory, registers it with the
library and carries out what it is asked for over a socket that it inherited. It is a process of
its own because the library installs signal handlers, may crash whoever hosts it, blocks its
callers for up to a minute and writes into buffers of calls that it has given up. All of that
ends with this process, and it never outlives the agent: the kernel kills it with the thread
that started it.

A message is one line of JSON. The first one tells that the library is ready, or why it is not::

    {"ready": true, "segment": "HOST:PORT"}
    {"ready": false, "kind": "import" | "setup", "why": "..."}

Then each request ``{"id": 1, "op": "get", "keys": [...], "at": [...], "sizes": [...]}`` has one answer
``{"id": 1, "codes": [...]}`` with the library's number for each key, in any order.
"""

import contextlib
import importlib
import json
import os
import queue
import socket
import sys
import threading
import traceback
from collections.abc import Sequence
from typing import Any

from kveik.store.mooncake_codes import INCOMPLETE
from kveik.store.parent import die_with
from kveik.store.shared_memory import Mapping

#: Longest wait for the library to give its segment back at the end.
_CLOSE_S = 2.0
#: Threads for requests that move no blocks.
_QUESTION_THREADS = 2

Message = dict[str, Any]


def reads_at_once(cores: int) -> int:
    """How many reads the library is given at once. It moves the parts of each on threads of its own.

    Measured on two cores, over TCP: four at once move two thirds of the bytes a second that two do.
    """
    return max(2, cores // 4)


class Host:
    """The library, opened by a plan, over the memory that was inherited."""

    def __init__(self, plan: Message) -> None:
        self._memory = [Mapping(fd, size) for fd, size in plan["memory"]]
        self._plan = plan
        self._library: Any = None
        self._store: Any = None
        self._reading = threading.Semaphore(reads_at_once(len(os.sched_getaffinity(0))))

    def open(self) -> Message:
        """Load the library and join the store; the first message, as said in the module's text."""
        try:
            self._library = importlib.import_module("mooncake.store")
        except ImportError as error:
            return {"ready": False, "kind": "import", "why": f"{error} (on Debian it needs libibverbs1)"}
        self._store = self._library.MooncakeDistributedStore()
        if not hasattr(self._store, "batch_put_session_start"):
            return {"ready": False, "kind": "import", "why": "it is older than 0.3.13, the first one with put sessions"}
        code = self._store.setup(*self._plan["setup"])
        if code != 0:
            return {"ready": False, "kind": "setup", "why": f"setup answered {code}"}
        for mapping in self._memory:
            code = self._store.register_buffer(mapping.address, mapping.size)
            if code != 0:
                return {"ready": False, "kind": "setup", "why": f"{mapping.size} bytes were not registered: {code}"}
        if self._memory:
            threading.Thread(target=self._fault_pages_in, daemon=True).start()
        return {"ready": True, "segment": self._store.get_hostname()}

    def answer(self, request: Message) -> Message:
        """Carry out one request."""
        return {"id": request["id"], "codes": list(getattr(self, f"_{request['op']}")(request))}

    def close(self) -> None:
        """Give the segment back, if one was lent. Waits a moment for it at most."""
        if self._plan["setup"][2]:
            closing = threading.Thread(target=self._store.close, daemon=True)
            closing.start()
            closing.join(_CLOSE_S)

    def _get(self, request: Message) -> Sequence[int]:
        with self._reading:
            codes: Sequence[int] = self._store.batch_get_into(
                request["keys"], self._addresses(request), request["sizes"]
            )
        return codes

    def _put(self, request: Message) -> Sequence[int]:
        """In sessions: a start tells, other than a plain put, whether somebody has stored the key already."""
        keys, sizes = request["keys"], request["sizes"]
        codes: list[int] = list(self._store.batch_put_session_start(keys, sizes, self._replicas(request)))
        begun = [index for index, code in enumerate(codes) if code == 0]
        if not begun:
            return codes
        addresses = self._addresses(request)
        moved = self._store.batch_put_from_multi_buffer_ranges(
            [keys[index] for index in begun],
            [[addresses[index]] for index in begun],
            [[sizes[index]] for index in begun],
            [[0]] * len(begun),
        )
        for index, count in zip(begun, moved, strict=True):
            codes[index] = 0 if count == sizes[index] else min(count, INCOMPLETE)
        whole = [index for index in begun if codes[index] == 0]
        for index, code in zip(whole, self._in_session("end", keys, whole), strict=True):
            codes[index] = code
        self._in_session("revoke", keys, [index for index in begun if codes[index] != 0])
        return codes

    def _in_session(self, what: str, keys: Sequence[str], indexes: Sequence[int]) -> Sequence[int]:
        if not indexes:
            return []
        codes: Sequence[int] = getattr(self._store, f"batch_put_session_{what}")([keys[index] for index in indexes])
        return codes

    def _exist(self, request: Message) -> Sequence[int]:
        codes: Sequence[int] = self._store.batch_is_exist(request["keys"])
        return codes

    def _remove(self, request: Message) -> Sequence[int]:
        codes: Sequence[int] = self._store.batch_remove(request["keys"], True)
        return codes

    def _drop(self, request: Message) -> Sequence[int]:
        return [self._store.remove_by_regex(request["keys"][0], True)]

    def _addresses(self, request: Message) -> list[int]:
        """Where the places of a request lie in this process: offsets over all memory, one piece after the other."""
        addresses = []
        for place in request["at"]:
            offset = place
            for mapping in self._memory:
                if offset < mapping.size:
                    addresses.append(mapping.address + offset)
                    break
                offset -= mapping.size
        return addresses

    def _replicas(self, request: Message) -> Any:
        config = self._library.ReplicateConfig()
        config.replica_num = self._plan["replicas"]
        if self._plan["soft_pin"]:
            _ask_for_soft_pin(self._library, config)
        if request["prefer"]:
            _prefer(config, request["prefer"])
        return config

    def _fault_pages_in(self) -> None:
        """Map the pages before bytes move: the first touch of each costs a good part of its copy."""
        never = threading.Event()
        for mapping in self._memory:
            mapping.populate(never)


def _ask_for_soft_pin(library: Any, config: Any) -> None:
    """Since 0.3.13 it is an action; before, it was a flag."""
    if hasattr(config, "soft_pin_action"):
        config.soft_pin_action = library.SoftPinAction.ENABLE
    else:
        config.with_soft_pin = True


def _prefer(config: Any, segments: list[str]) -> None:
    """Older versions take one segment only."""
    if hasattr(config, "preferred_segments"):
        config.preferred_segments = segments
    else:
        config.preferred_segment = segments[0]


class Desk:
    """Takes requests from the socket, and has a few threads answer them: questions never wait for transfers."""

    def __init__(self, host: Host, channel: socket.socket, threads: int) -> None:
        self._host = host
        self._channel = channel
        self._threads = threads
        self._transfers: queue.SimpleQueue[Message] = queue.SimpleQueue()
        self._questions: queue.SimpleQueue[Message] = queue.SimpleQueue()
        self._sending = threading.Lock()

    def send(self, message: Message) -> None:
        """Send one line."""
        with self._sending:
            self._channel.sendall(json.dumps(message).encode() + b"\n")

    def serve(self) -> None:
        """Until the agent closes its end."""
        for requests, count in ((self._transfers, self._threads), (self._questions, _QUESTION_THREADS)):
            for _ in range(count):
                threading.Thread(target=self._work, args=(requests,), daemon=True).start()
        for line in self._channel.makefile("rb"):
            request = json.loads(line)
            (self._transfers if "at" in request else self._questions).put(request)

    def _work(self, requests: "queue.SimpleQueue[Message]") -> None:
        while True:
            answer = self._host.answer(requests.get())
            with contextlib.suppress(OSError):  # the agent is gone, and so is this process in a moment
                self.send(answer)


def main(arguments: Sequence[str]) -> None:
    """Serve one agent; ends the process."""
    plan: Message = json.loads(arguments[0])
    if not die_with(plan["parent"]):  # it was gone before the kernel knew that we wish to go with it
        os._exit(0)
    threading.excepthook = _end_with_trace
    host = Host(plan)
    desk = Desk(host, socket.socket(fileno=plan["socket"]), plan["threads"])
    first = host.open()
    desk.send(first)
    if first["ready"]:
        desk.serve()
        host.close()
    os._exit(0)  # without the library's own tidying up, which waits for what hangs


def _end_with_trace(failed: threading.ExceptHookArgs) -> None:
    """A request that raises is a defect; its caller must hear of it by our end."""
    traceback.print_exception(failed.exc_value)
    os._exit(1)


if __name__ == "__main__":
    main(sys.argv[1:])

"""An engine that answers requests of clients with whatever bytes it is told to, and the router's own as it should."""

import contextlib
import json
import socket
import socketserver
import struct
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass

MODEL = "m"
OK = b'{"ok":true}'


def whole_answer(body: bytes) -> bytes:
    return b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%s" % (len(body), body)


@dataclass
class Script:
    """What clients get: the pieces, one after the other, and then perhaps the end (``fin``, ``rst``)."""

    pieces: tuple[bytes, ...] = (whole_answer(OK),)
    end: str = ""


class _Handler(socketserver.StreamRequestHandler):
    server: "_Server"
    disable_nagle_algorithm = True

    def handle(self) -> None:
        with contextlib.suppress(OSError):
            while self._one():
                pass

    def _one(self) -> bool:
        first = self.rfile.readline()
        if not first:
            return False
        headers = {}
        while (line := self.rfile.readline().strip()) != b"":
            name, _, value = line.partition(b":")
            headers[name.lower()] = value.strip()
        self.rfile.read(int(headers.get(b"content-length", b"0")))
        if b" /v1/models " in first:
            card = {"id": MODEL, "object": "model"}
            self.wfile.write(whole_answer(json.dumps({"object": "list", "data": [card]}).encode()))
        elif headers.get(b"x-request-id") == b"kveik-router":
            self.wfile.write(whole_answer(OK))
        else:
            return self._play(self.server.script)
        return True

    def _play(self, script: Script) -> bool:
        for number, piece in enumerate(script.pieces):
            if number:
                time.sleep(0.002)
            self.wfile.write(piece)
        if script.end == "rst":
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        return not script.end


class _Server(socketserver.ThreadingTCPServer):
    daemon_threads = True
    request_queue_size = 64

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.script = Script()


@contextlib.contextmanager
def raw_engine() -> Iterator[_Server]:
    """Serve until the block ends; ``script`` may be changed at any time."""
    server = _Server()
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join(10)

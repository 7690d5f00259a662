"""A client made of one socket, which sees every byte and every way in which a connection ends."""

import json
import re
import socket
import struct
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Literal, Self
from urllib.parse import urlsplit

CHAT: dict[str, Any] = {"model": "simulated", "messages": [{"role": "user", "content": "hello " * 40}]}
End = Literal["open", "fin", "rst"]


@dataclass(frozen=True)
class Answer:
    """A whole answer. ``head``: status line and headers as they came."""

    status: int
    head: str
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)


class Raw:
    """One connection to ``url``. Reading stops at a condition, at the end, or fails after ten seconds."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self.socket = socket.create_connection((parts.hostname, parts.port), timeout=10)
        self.data = b""
        self.end: End = "open"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.socket.close()

    def send(self, method: str, path: str, body: Any = None, headers: Mapping[str, str] | None = None) -> Self:
        payload = b"" if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
        lines = {"host": "sim", "content-length": str(len(payload)), **(headers or {})}
        head = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
        self.socket.sendall(f"{method} {path} HTTP/1.1\r\n{head}\r\n".encode() + payload)
        return self

    def more(self) -> bool:
        """Read what there is; false at the end of the connection."""
        try:
            data = self.socket.recv(1 << 16)
        except ConnectionResetError:
            self.end = "rst"
            return False
        if not data:
            self.end = "fin"
        self.data += data
        return bool(data)

    def until(self, mark: bytes) -> bytes:
        """Everything up to ``mark``, which is taken away from ``data`` with it."""
        while mark not in self.data:
            assert self.more(), f"the connection ended ({self.end}) before {mark!r}: {self.data!r}"
        before, _, self.data = self.data.partition(mark)
        return before + mark

    def to_the_end(self) -> bytes:
        """All bytes until the connection ends; ``end`` says how."""
        while self.more():
            pass
        return self.data

    def silent(self, seconds: float) -> bool:
        """Whether nothing comes and nothing ends for so long."""
        self.socket.settimeout(seconds)
        try:
            self.more()
        except TimeoutError:
            return True
        finally:
            self.socket.settimeout(10)
        return False

    def answer(self) -> Answer:
        """The next whole answer, with a length or in chunks."""
        head = self.until(b"\r\n\r\n").decode("latin1")
        length = re.search(r"content-length: (\d+)", head)
        if length:
            while len(self.data) < int(length[1]):
                assert self.more(), self.end
            body, self.data = self.data[: int(length[1])], self.data[int(length[1]) :]
        else:
            body = b"".join(self.chunks())
        return Answer(int(head.split()[1]), head, body)

    def chunks(self) -> Iterator[bytes]:
        """The chunks of a chunked body up to its end."""
        while size := int(self.until(b"\r\n"), 16):
            while len(self.data) < size + 2:
                assert self.more(), self.end
            chunk, self.data = self.data[:size], self.data[size + 2 :]
            yield chunk
        assert self.until(b"\r\n") == b"\r\n"

    def reset(self) -> None:
        """Leave by RST."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.socket.close()

    def leave(self) -> float:
        """Leave; when that was, on the machine's monotonic clock."""
        self.socket.close()
        return time.monotonic()


def ask(url: str, method: str, path: str, body: Any = None, headers: Mapping[str, str] | None = None) -> Answer:
    """One request on a connection of its own."""
    with Raw(url) as raw:
        return raw.send(method, path, body, headers).answer()


def events(body: bytes) -> list[str]:
    """The data of the events of a stream."""
    found = [block.partition("data: ")[2] for block in body.decode().split("\n\n")]
    assert found.pop() == ""
    return found


def texts(body: bytes) -> str:
    """The text of a streamed chat."""
    chunks = [json.loads(data) for data in events(body) if data != "[DONE]"]
    return "".join(choice["delta"].get("content", "") for chunk in chunks for choice in chunk["choices"])

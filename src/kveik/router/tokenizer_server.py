"""The process that tokenizes for a router: reads requests from its input, writes answers to its output.

It ends with its input, that is with the router.
"""

import signal
import sys
from pathlib import Path

import msgspec

from kveik.errors import RenderError
from kveik.router.tokenizer import TokenizerFiles
from kveik.router.tokenizer_process import Answer, Ask, read_frame, write_frame


def answer(tokenizers: TokenizerFiles, ask: Ask) -> Answer:
    """The answer to one request."""
    file = Path(ask.file)
    try:
        if ask.texts is not None:
            return Answer(tokens=tokenizers.encode(file, ask.texts))
        if ask.token is not None:
            return Answer(text=tokenizers.text_of(file, ask.token))
        return Answer(about=tokenizers.about(file))
    except RenderError as error:
        return Answer(error=str(error))


def main() -> None:
    """Serve until the input ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a Ctrl-C is for the router, which then ends our input
    tokenizers = TokenizerFiles()
    decode = msgspec.msgpack.Decoder(Ask).decode
    while payload := read_frame(sys.stdin.buffer):
        write_frame(sys.stdout.buffer, msgspec.msgpack.encode(answer(tokenizers, decode(payload))))


if __name__ == "__main__":
    main()

"""Finds the ends of requests in the received bytes. Pure.

aiohttp's parser does not report where a request ends, and it accepts trailers. So `RequestEnds`
searches the same bytes for the ends of heads, and follows the bodies to their ends.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from holdfast.http_api.wire.chunk_walk import ChunkWalk, UnclearEnd

if TYPE_CHECKING:
    from holdfast.http_api.wire.aiohttp_parser import RawRequestMessage
    from holdfast.http_api.wire.request import Content


class RequestEnds:
    """The ends of requests in the bytes that one parser gets. `text` are the first of these bytes.

    A parser gets the same bytes: the caller first calls `pass_body` for further bytes, then gives
    them to the parser, and then calls `follow` with the requests that the parser has found.
    """

    __slots__ = ("chunks", "missing_bytes", "text")

    def __init__(self, text: bytes) -> None:
        self.text = text
        """The received bytes after the body of the last request that was found.

        If these bytes are an incomplete head, only the head's last bytes are kept.
        """
        self.missing_bytes = 0
        """How many bytes of the last request's body have not arrived, if its length is known."""
        self.chunks: ChunkWalk | None = None
        """The position in the chunked body that is arriving; None if no chunked body is arriving.
        """

    def pass_body(self, data: bytes) -> tuple[int, int]:
        """Take further bytes, and return the index in `data` after the body that is arriving.

        The index is 0 if no body is arriving, and the length of `data` if the body does not end in
        `data`. Also return by how many bytes the memory of a chunked body grows. Raises UnclearEnd.
        """
        end = memory = 0
        if self.missing_bytes:
            end = min(self.missing_bytes, len(data))
            self.missing_bytes -= end
        elif self.chunks is not None:
            walk = self.chunks
            before = walk.chunk_memory
            end = walk.feed(data, 0)
            if end < 0:
                end = len(data)
            else:
                self.chunks = None
            memory = end + walk.chunk_memory - before
        self.text += data[end:]
        return end, memory

    def follow(self, messages: "Sequence[tuple[RawRequestMessage, Content]]") -> list[int]:
        """Find the ends of these requests, and return the memory of each body in bytes.

        If the end of a request is unclear (it has trailers, or its head is not found), the result
        has only the memory of the bodies before this request.
        """
        text, at = self.text, 0
        bodies: list[int] = []
        for message, content in messages:
            while text.startswith(b"\r\n", at):
                at += 2
            if text[at : at + 1] in (b"\r", b"\n"):
                return bodies  # a single CR or LF, which the parser skips
            at = text.find(b"\r\n\r\n", at) + 4
            if at < 4:
                return bodies
            if message.chunked:
                walk, start = ChunkWalk(), at
                try:
                    at = walk.feed(text, at)
                except UnclearEnd:
                    return bodies
                if at < 0:
                    self.chunks, at = walk, len(text)
                bodies.append(at - start + walk.chunk_memory)
            else:
                at += int(message.headers.get("Content-Length", "0"))
                self.missing_bytes = max(at - len(text), 0)
                bodies.append(content.total_bytes)
        self.text = text[at:]
        self.keep_end_of_head()
        return bodies

    def keep_end_of_head(self) -> None:
        """If `text` is an incomplete head, keep only its last three bytes, after a ".".

        `follow` skips line ends at the beginning of a head. The kept bytes may be line ends that
        are the first part of the head's end. Because of the ".", `follow` does not skip them.
        """
        if len(self.text) > 4 and b"\r\n\r\n" not in self.text:
            self.text = b"." + self.text[-3:]

"""HTTP-like server on raw framing: the loop passes bytes as they arrive, and the protocol divides them into messages.

    python examples/http_like.py [PORT]          then: curl http://127.0.0.1:PORT/hello

Raw framing suits protocols whose messages have no boundary that the loop could recognize. A chunk is one request of the
queue. An incomplete message has no response; its bytes are kept by the connection's id until the rest arrives. The
server supports GET, keep-alive and pipelining; it is an example of the loop, not a web server.
"""

from __future__ import annotations

import argparse
import threading

from kbroker.common.listeners import Listener
from kbroker.network.options import SocketServerOptions
from kbroker.network.request_channel import InboundRequest, RequestChannel
from kbroker.network.socket_server import SocketServer

LARGEST_HEAD_BYTES = 8192
END_OF_HEAD = b"\r\n\r\n"
MOST_KEPT = 10_000


class HttpLikeServer:
    """Server with one handler thread, so that the chunks of a connection need no lock."""

    def __init__(self, port: int = 0) -> None:
        self.channel = RequestChannel(capacity=500)
        options = SocketServerOptions(network_threads=1, framing="raw", max_request_bytes=65536, idle_ms=30_000)
        self.server = SocketServer([Listener("HTTP", "PLAINTEXT", "127.0.0.1", port)], self.channel.queue, options)
        self.kept: dict[str, bytes] = {}  # the beginning of a message by connection id
        self.thread = threading.Thread(target=self.handle_chunks, name="handler", daemon=True)

    @property
    def port(self) -> int:
        return self.server.port("HTTP")

    def start(self) -> HttpLikeServer:
        self.server.start()
        self.thread.start()
        return self

    def stop(self) -> None:
        self.server.begin_stop()
        self.channel.close()
        self.thread.join()
        self.server.finish_stop()

    def handle_chunks(self) -> None:
        while (chunk := self.channel.receive()) is not None:
            self.handle(chunk)

    def handle(self, chunk: InboundRequest) -> None:
        data = self.kept.pop(chunk.connection_id, b"") + bytes(chunk.payload)
        responses = []
        while END_OF_HEAD in data:  # one chunk may contain several messages
            head, _, data = data.partition(END_OF_HEAD)
            responses.append(self.respond_to(head))
        if len(data) > LARGEST_HEAD_BYTES:
            chunk.close()
            return
        if data:
            while len(self.kept) >= MOST_KEPT:  # entries of closed connections, oldest first
                del self.kept[next(iter(self.kept))]
            self.kept[chunk.connection_id] = data
        if responses:
            chunk.respond(responses)
        else:
            chunk.respond_nothing()  # the connection reads the next chunk

    def respond_to(self, head: bytes) -> bytes:
        words = head.split(b"\r\n", 1)[0].split()
        if len(words) != 3 or not words[2].startswith(b"HTTP/1."):
            status, body = b"400 Bad Request", b"that is not a request line\n"
        elif words[0] != b"GET":
            status, body = b"405 Method Not Allowed", b"GET only\n"
        else:
            status, body = b"200 OK", b"you asked for " + words[1] + b"\n"
        return b"HTTP/1.1 %s\r\nContent-Type: text/plain\r\nContent-Length: %d\r\n\r\n%s" % (status, len(body), body)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("port", type=int, nargs="?", default=8008, help="0 picks a free one (default: 8008)")
    server = HttpLikeServer(parser.parse_args().port)
    try:
        server.start()
    except (OSError, OverflowError) as why:  # the port is in use or out of range
        parser.exit(1, f"{parser.prog}: {getattr(why, 'strerror', None) or why}\n")
    print(f"listening on http://127.0.0.1:{server.port}; Ctrl-C stops", flush=True)
    try:
        threading.Event().wait()
    except KeyboardInterrupt:
        server.stop()


if __name__ == "__main__":
    main()

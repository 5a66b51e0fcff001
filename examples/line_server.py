"""Chat-like server with a line protocol, built on kbroker's core modules without the Kafka protocol.

    python examples/line_server.py [PORT]        then: nc 127.0.0.1 PORT

Each line that begins with a word of the protocol has a response of one line:

    ECHO text       the text
    AFTER ms text   the text after that many milliseconds (a timer of the timing wheel)
    STATS           connections, requests, memory of the pool, pending timers
    QUIT            closes the connection

Network threads poll, read and divide lines without the GIL; they put requests into a bounded queue, from which one
Python thread takes them. A connection without a complete line has no Python object, so 10,000 may be idle.
"""

from __future__ import annotations

import argparse
import threading

from kbroker._core.requests.memory_pool import MemoryPool
from kbroker._core.requests.request_queue import Queue
from kbroker._core.timer.timing_wheel import Timer
from kbroker.common.listeners import Listener
from kbroker.network.options import SocketServerOptions
from kbroker.network.request_channel import InboundRequest, RequestChannel
from kbroker.network.socket_server import SocketServer

LONGEST_LINE_BYTES = 4096
LONGEST_DELAY_MS = 3_600_000


class LineServer:
    """Loop, pool, queue and timer combined. ``port``: the port on which the server listens."""

    def __init__(self, port: int = 0, *, network_threads: int = 1) -> None:
        self.pool = MemoryPool(16 << 20, LONGEST_LINE_BYTES * 2)
        self.channel = RequestChannel(Queue(1000))
        self.timer = Timer()
        self.server = SocketServer(
            [Listener("LINES", "PLAINTEXT", "127.0.0.1", port)],
            self.channel.queue,
            SocketServerOptions(
                network_threads=network_threads,
                framing="delimiter",
                delimiter=b"\n",
                max_request_bytes=LONGEST_LINE_BYTES,
                frame_timeout_ms=0,
                backlog=4096,
            ),
            pool=self.pool,
        )
        self.threads = [
            threading.Thread(target=self.handle_requests, name="handler", daemon=True),
            threading.Thread(target=self.run_timer, name="timer", daemon=True),
        ]

    @property
    def port(self) -> int:
        return self.server.port("LINES")

    def start(self) -> LineServer:
        self.server.start()
        for thread in self.threads:
            thread.start()
        return self

    def stop(self) -> None:
        self.server.begin_stop()  # no more lines are read; requests in the queue still have responses
        self.channel.close()
        self.threads[0].join()
        self.timer.close()
        self.threads[1].join()
        self.server.finish_stop()

    def handle_requests(self) -> None:
        while (request := self.channel.receive()) is not None:
            self.response(request)

    def run_timer(self) -> None:
        while not self.timer.closed:
            self.timer.advance(500)

    def response(self, request: InboundRequest) -> None:
        word, _, rest = bytes(request.payload).rstrip(b"\r").partition(b" ")
        if word == b"ECHO":
            request.respond([rest, b"\n"])
        elif word == b"AFTER":
            self.answer_later(request, rest)
        elif word == b"STATS":
            request.respond(self.stats().encode() + b"\n")
        elif word == b"QUIT":
            request.close()
        else:
            request.respond(b"? ECHO text, AFTER ms text, STATS or QUIT\n")

    def answer_later(self, request: InboundRequest, rest: bytes) -> None:
        delay, _, text = rest.partition(b" ")
        if not delay.isdigit() or int(delay) > LONGEST_DELAY_MS:
            request.respond(b"? AFTER milliseconds text\n")
            return
        # The handler is free at once; the connection reads its next line after this response.
        self.timer.add(int(delay), lambda: request.respond([text, b"\n"]))

    def stats(self) -> str:
        counters = [processor.counters() for processor in self.server.processors]
        connections = sum(c["connections_created"] - c["connections_closed"] for c in counters)
        requests = sum(c["requests"] for c in counters)
        lent = self.pool.size_bytes - self.pool.available_bytes
        return f"connections={connections} requests={requests} pool_lent_bytes={lent} timers={self.timer.size}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("port", type=int, nargs="?", default=7007, help="0 picks a free one (default: 7007)")
    server = LineServer(parser.parse_args().port)
    try:
        server.start()
    except (OSError, OverflowError) as why:  # the port is in use or out of range
        parser.exit(1, f"{parser.prog}: {getattr(why, 'strerror', None) or why}\n")
    print(f"listening on 127.0.0.1:{server.port}; Ctrl-C stops", flush=True)
    try:
        threading.Event().wait()
    except KeyboardInterrupt:
        server.stop()


if __name__ == "__main__":
    main()

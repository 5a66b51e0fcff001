"""Requests per second through acceptor, network thread, queue and one handler thread, beside a bare epoll loop in C.

    python bench/bench_network.py [--seconds 3] [--rounds 3] [--request-batch-max 16]

The handler responds with the correlation id and 100 zero bytes, as the bare loop does. Rounds alternate, and medians
are printed.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import threading
from pathlib import Path

from kbroker.common.listeners import Listener
from kbroker.network.options import SocketServerOptions
from kbroker.network.request_channel import RequestChannel
from kbroker.network.socket_server import SocketServer

sys.path[:0] = [str(Path(__file__).resolve().parents[1])]

from bench.loads.generator import Generator, bare_loop, frames  # noqa: E402
from tests.native.echo import run_echo  # noqa: E402

BODY_BYTES = 100
LOADS = ((16, 1), (8, 5))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=3)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--request-batch-max", type=int, default=16)
    args = parser.parse_args()
    load = Generator(frames("load"))
    channel = RequestChannel()
    options = SocketServerOptions(network_threads=1, request_batch_max=args.request_batch_max)
    server = SocketServer([Listener("PLAINTEXT", "PLAINTEXT", "127.0.0.1", 0)], channel.queue, options)
    server.start()
    handler = threading.Thread(target=run_echo, args=(channel.queue, BODY_BYTES))
    handler.start()
    try:
        with bare_loop(BODY_BYTES) as (bare_port, _):
            ports = {"bare": bare_port, "kbroker": server.port("PLAINTEXT")}
            for connections, in_flight in LOADS:
                rates: dict[str, list[float]] = {name: [] for name in ports}
                for _ in range(args.rounds):
                    for name, port in ports.items():
                        found = load.run(port, "api_versions", connections, in_flight, args.seconds, warm_up_s=0.5)
                        rates[name].append(float(found["requests_per_s"]))
                middle = {name: statistics.median(each) for name, each in rates.items()}
                share = middle["kbroker"] / middle["bare"]
                both = f"bare {middle['bare']:,.0f}/s, kbroker {middle['kbroker']:,.0f}/s"
                print(f"{connections} x {in_flight}: {both}, {share:.0%}")
    finally:
        server.begin_stop()
        channel.close()
        handler.join()
        server.finish_stop()


if __name__ == "__main__":
    main()

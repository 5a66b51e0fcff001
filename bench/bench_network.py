"""Requests per second through acceptor, network thread, queue and one handler thread, beside a bare epoll loop in C.

    python bench/bench_network.py --load-tools DIR [--seconds 3] [--rounds 3] [--run-length 16]

DIR holds the sources ``bare_server.c`` and ``loadgen.c``; both are compiled into a temporary folder. The handler
answers with the correlation id and 100 zero bytes, as the bare loop does. Rounds alternate; medians are printed.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import socket
import statistics
import subprocess
import tempfile
import threading
import time

from kbroker._core._echo import run_echo
from kbroker.common.listeners import Listener
from kbroker.network.request_channel import RequestChannel
from kbroker.network.socket_server import SocketServer, SocketServerOptions

LOADS = ((16, 1), (8, 5))


def measure(loadgen: pathlib.Path, frame: pathlib.Path, port: int, load: tuple[int, int], seconds: float) -> float:
    """Return the requests per second that one closed-loop load reaches; fails on any wrong answer."""
    command = [str(loadgen), "127.0.0.1", str(port), str(frame), str(load[0]), str(load[1]), str(seconds), "0.5"]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=seconds + 30)
    return float(json.loads(done.stdout)["requests_per_s"])


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


def wait_for(port: int) -> None:
    """Until the other process accepts."""
    for _ in range(200):
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            return
        except ConnectionRefusedError:
            time.sleep(0.01)
    raise SystemExit(f"nothing listens on port {port}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--load-tools", type=pathlib.Path, required=True)
    parser.add_argument("--seconds", type=float, default=3)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--run-length", type=int, default=16)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        work = pathlib.Path(folder)
        for name in ("bare_server", "loadgen"):
            subprocess.run(["gcc", "-O2", "-w", "-o", work / name, args.load_tools / f"{name}.c"], check=True)
        frame = work / "api_versions.bin"
        frame.write_bytes(b"\0\x12\0\0\0\0\0\0\0\4load")
        channel = RequestChannel()
        options = SocketServerOptions(network_threads=1, run_length=args.run_length)
        server = SocketServer([Listener("PLAINTEXT", "PLAINTEXT", "127.0.0.1", 0)], channel.queue, options)
        server.start()
        handler = threading.Thread(target=run_echo, args=(channel.queue, 100))
        handler.start()
        bare_port = free_port()
        bare = subprocess.Popen([work / "bare_server", str(bare_port)])
        try:
            wait_for(bare_port)
            ports = {"bare": bare_port, "kbroker": server.port("PLAINTEXT")}
            for load in LOADS:
                rates: dict[str, list[float]] = {name: [] for name in ports}
                for _ in range(args.rounds):
                    for name, port in ports.items():
                        rates[name].append(measure(work / "loadgen", frame, port, load, args.seconds))
                middle = {name: statistics.median(found) for name, found in rates.items()}
                share = middle["kbroker"] / middle["bare"]
                both = f"bare {middle['bare']:,.0f}/s, kbroker {middle['kbroker']:,.0f}/s"
                print(f"{load[0]} x {load[1]}: {both}, {share:.0%}")
        finally:
            bare.kill()
            bare.wait()
            server.begin_stop()
            channel.close()
            handler.join()
            server.finish_stop()


if __name__ == "__main__":
    main()

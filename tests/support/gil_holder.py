"""A broker in this process, and a Python thread that takes the GIL and keeps it.

    python -m tests.support.gil_holder DATA_DIR

Prints the address. For each line on standard input, a number of seconds, it spins that long without ever offering the
GIL and prints `done` afterwards. Ends when standard input closes.
"""

import sys
import time

from kbroker.server.broker import Broker


def spin(seconds: float) -> None:
    """Keep the GIL: the switch interval is far away, and nothing here releases it."""
    sys.setswitchinterval(1000)
    try:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            pass
    finally:
        sys.setswitchinterval(0.005)


def main() -> None:
    with Broker({"log.dirs": sys.argv[1], "listeners": "PLAINTEXT://127.0.0.1:0"}) as broker:
        print(broker.bootstrap_servers, flush=True)
        for line in sys.stdin:
            print("spinning", flush=True)
            spin(float(line))
            print("done", flush=True)


if __name__ == "__main__":
    main()

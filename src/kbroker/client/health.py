"""Check that a broker responds: `python -m kbroker.client.health [HOST:PORT] [--timeout SECONDS] [--wait SECONDS]`

It requests ApiVersions from each address until one responds. The exit status is 0, with a line on stdout, or 1, with
one on stderr, as a container's health check expects. The default address is KBROKER_BOOTSTRAP, else 127.0.0.1:9092.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence

from kbroker.client.connection import API_VERSIONS, BrokerConnectionError, Connection, format_address, parse_bootstrap

DEFAULT_BOOTSTRAP = "127.0.0.1:9092"
DEFAULT_TIMEOUT_S = 5.0
MAX_TIMEOUT_S = 1_000_000_000  # sockets reject time-outs of more than 292 years
PAUSE_S = 0.05


def check(bootstrap: str, timeout_s: float = DEFAULT_TIMEOUT_S) -> str:
    """Request the API versions of the brokers in turn; return a line about the first that responds.

    Args:
        bootstrap: ``host:port`` addresses, separated by commas.
        timeout_s: seconds for the connection to each, and again for its response.

    Raises: BrokerConnectionError of the last address if no response is good; ValueError for a malformed address.
    """
    failure: BrokerConnectionError | None = None
    for address in parse_bootstrap(bootstrap):
        try:
            connection = Connection(address, client_id="kbroker-health", connect_timeout_s=timeout_s)
            try:
                response = connection.request(API_VERSIONS, 0, {}, timeout_s=timeout_s)
            finally:
                connection.close()
            if response["ErrorCode"] != 0 or not response["ApiKeys"]:
                raise BrokerConnectionError(address, f"expected API versions, got error {response['ErrorCode']}")
            return f"{format_address(address)} serves {len(response['ApiKeys'])} APIs"
        except BrokerConnectionError as error:
            failure = error
    assert failure is not None  # parse_bootstrap gives at least one address
    raise failure


def wait_for(
    bootstrap: str,
    wait_s: float,
    timeout_s: float = DEFAULT_TIMEOUT_S,
    *,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> str:
    """Repeat `check` until a broker responds, for at most ``wait_s`` seconds. Raises: as the last `check`."""
    end_s = clock() + wait_s
    while True:
        try:
            return check(bootstrap, timeout_s)
        except BrokerConnectionError:
            if not clock() < end_s:  # true for NaN too
                raise
        sleep(PAUSE_S)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return its exit status: 0 if a broker responded, else 1."""
    parser = argparse.ArgumentParser(
        prog="python -m kbroker.client.health", description="Check that a broker responds."
    )
    parser.add_argument(
        "bootstrap", nargs="?", metavar="HOST:PORT", help="The broker.  [default: KBROKER_BOOTSTRAP or 127.0.0.1:9092]"
    )
    parser.add_argument(
        "--timeout",
        type=float,
        default=DEFAULT_TIMEOUT_S,
        metavar="SECONDS",
        help="Time for a connection and for a response.  [default: 5]",
    )
    parser.add_argument(
        "--wait", type=float, default=0.0, metavar="SECONDS", help="Wait this long for a broker that is starting."
    )
    options = parser.parse_args(arguments)
    bootstrap = options.bootstrap or os.environ.get("KBROKER_BOOTSTRAP") or DEFAULT_BOOTSTRAP
    try:
        if not 0 <= options.timeout <= MAX_TIMEOUT_S:
            raise ValueError(f"expected a time-out of 0 to {MAX_TIMEOUT_S} seconds, got {options.timeout:g}")
        print(wait_for(bootstrap, options.wait, options.timeout))
    except (BrokerConnectionError, ValueError) as error:
        print(f"unhealthy: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # not ignored
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C prints no traceback
    sys.exit(main())

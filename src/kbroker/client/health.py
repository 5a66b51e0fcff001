"""Check that a broker responds: `python -m kbroker.client.health [HOST:PORT] [--timeout SECONDS]`

One ApiVersions request to the first address that answers. Exit status 0 and a line on stdout, or 1 and one on stderr:
what a container's health check wants. The address is KBROKER_BOOTSTRAP when not given, else 127.0.0.1:9092.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from kbroker.client.connection import API_VERSIONS, BrokerConnectionError, Connection, format_address, parse_bootstrap

DEFAULT_BOOTSTRAP = "127.0.0.1:9092"
DEFAULT_TIMEOUT_S = 5.0


def check(bootstrap: str, timeout_s: float = DEFAULT_TIMEOUT_S) -> str:
    """Ask the brokers in turn for their API versions; return a line about the first that answers.

    Args:
        bootstrap: ``host:port`` with commas between.
        timeout_s: seconds for connecting to each, and again for its response.

    Raises: BrokerConnectionError of the last address when none answers well; ValueError for a malformed address.
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


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m kbroker.client.health", description="Check that a broker responds."
    )
    parser.add_argument("bootstrap", nargs="?", metavar="HOST:PORT", help="KBROKER_BOOTSTRAP, else 127.0.0.1:9092")
    parser.add_argument("--timeout", type=float, default=DEFAULT_TIMEOUT_S, metavar="SECONDS")
    options = parser.parse_args(arguments)
    bootstrap = options.bootstrap or os.environ.get("KBROKER_BOOTSTRAP") or DEFAULT_BOOTSTRAP
    try:
        print(check(bootstrap, options.timeout))
    except (BrokerConnectionError, ValueError) as error:
        print(f"unhealthy: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

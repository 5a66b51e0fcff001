"""KBROKER_TEST_POLLER=selectors: every broker of the suite runs on the event loop that Windows has.

Processes that the suite starts with `kbroker serve` receive the poller by the environment, brokers in a test's process
by the default of their setting; a broker whose settings name a poller keeps it. As a plugin (`-p tests.support.poller`)
the module does the same in a run of pytest that a test starts.
"""

import os

WANTED = os.environ.get("KBROKER_TEST_POLLER", "")


def apply() -> None:
    """Make the requested poller the default of this process and of its child processes."""
    if WANTED:
        from kbroker.common.configs.config import BROKER_TABLE

        os.environ["KBROKER_POLLER"] = WANTED
        object.__setattr__(BROKER_TABLE["kbroker.poller"], "default", WANTED)


def pytest_configure() -> None:
    """Apply the poller when the module is a plugin."""
    apply()

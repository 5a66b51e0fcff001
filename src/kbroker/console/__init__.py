"""The web console: pages about a running broker at its HTTP port, for `kbroker[console]`.

All modules other than this one are imported at the first request for a page.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kbroker.broker import Broker
    from kbroker.console.app import Console
    from kbroker.observe.http_access import HttpAccess

ROOT = "/console"


def mount(broker: Broker) -> None:
    """Serve the console at the broker's HTTP port from its next start on; `kbroker serve` calls this itself."""
    broker.mount(ROOT, _load)


def _load(broker: Broker, access: HttpAccess) -> Console:
    from kbroker.console.app import Console

    return Console.of_broker(broker, access, broker.config.boolean("kbroker.console.edit"))

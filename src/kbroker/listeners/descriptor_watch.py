"""Warning for connections that wait because the limit of open files is near."""

from __future__ import annotations

from kbroker.common.loggers import get_logger
from kbroker.common.open_files import open_files_limit
from kbroker.network.socket_server import SocketServer

logger = get_logger(__name__)

#: Minimum interval of the log lines.
LOOK_EVERY_MS = 10_000


class DescriptorWatch:
    """Watch over the acceptors of a server. Threads: ``look`` on one at a time."""

    def __init__(self, server: SocketServer) -> None:
        self._server = server
        self._seen = 0
        self._is_short = False

    def look(self) -> None:
        """Log when acceptors have waited for descriptors since the last look, and when they no longer wait."""
        seen = sum(acceptor.out_of_descriptors for acceptor in self._server.acceptors)
        was_short, self._is_short = self._is_short, seen > self._seen
        self._seen = seen
        if self._is_short:
            logger.warning(
                "new connections wait: %d are open, and the rest of the limit of open files (%s) is kept for the "
                "log; raise the limit (ulimit -n, LimitNOFILE), or set max.connections below it",
                self._server.connection_quotas.count(),
                open_files_limit() or "none",
            )
        elif was_short:
            logger.info("new connections are accepted again: descriptors are free")

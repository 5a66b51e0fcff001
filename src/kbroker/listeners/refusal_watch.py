"""Log of the connections that were closed without a response: unknown APIs, unknown versions, damaged requests.

Source: ``Processor.parseRequestHeader`` and ``processChannelException``, with their wording.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from kbroker.common.errors import Errors
from kbroker.common.loggers import get_logger
from kbroker.network.connections._refused_requests import RefusedRequests
from kbroker.network.connections.refusal import Refusal

logger = get_logger(__name__)

#: Minimum interval of calls of ``look``; between two calls the first ten refusals are kept, and the others counted.
LOOK_EVERY_MS = 1_000

#: First bytes of other protocols, which are read as the size of a request.
_HTTP_METHODS = (b"GET ", b"POST", b"PUT ", b"HEAD", b"OPTI", b"DELE", b"PATC", b"CONN", b"PRI ")
_TLS_HANDSHAKE = b"\x16\x03"

NoteRefusals = Callable[[Sequence[tuple[Refusal, int]]], None]


class RefusalWatch:
    """Writer of kept refusals to the log and, through ``note``, to the request log.

    Args: ``versions``: first and last served version by API key. ``names``: by API key. ``max_request_bytes``: the
        listeners' limit. ``note``: receives refusals, each with the number of refusals that it represents.
    Threads: ``look`` on one at a time.
    """

    def __init__(
        self,
        refused: RefusedRequests,
        versions: Mapping[int, tuple[int, int]],
        names: Mapping[int, str],
        max_request_bytes: int,
        note: NoteRefusals | None = None,
    ) -> None:
        self._refused = refused
        self._versions = versions
        self._names = names
        self._max_request_bytes = max_request_bytes
        self._note = note
        self._noted: dict[str, int] = {}  # number of noted refusals by reason

    def look(self) -> None:
        """Write a line for each kept refusal since the last call, and one for the others; note all of them."""
        counts = self._refused.counts() if self._note is not None else {}
        kept, left_out = self._refused.take()
        for refusal in kept:
            logger.warning("Closing socket for %s because of error: %s", refusal.connection_id, self._error(refusal))
        if left_out:
            logger.warning("%d more sockets were closed for requests like the last ones", left_out)
        if self._note is not None:
            self._note(self._records(kept, counts))

    def _records(self, kept: Sequence[Refusal], counts: Mapping[str, int]) -> list[tuple[Refusal, int]]:
        """Return a record of each kept refusal, and for each reason one of all others; note how many were recorded."""
        found = [(refusal, 1) for refusal in kept]
        for refusal in kept:
            self._noted[refusal.reason] = self._noted.get(refusal.reason, 0) + 1
        for reason, count in counts.items():
            others = count - self._noted.get(reason, 0)
            if others > 0:  # negative: counted after ``counts``, so it belongs to the next ``look``
                found.append((Refusal(reason, -1, -1, -1, 0, -1, "", ""), others))
                self._noted[reason] = count
        return found

    def _error(self, refusal: Refusal) -> str:
        key, version = refusal.api_key, refusal.api_version
        name = self._names.get(key)
        if refusal.reason == "unsupported-version":
            first, last = self._versions.get(key, (0, -1))
            return (
                f"Unsupported api with key {key} ({name}) and version {version}; versions {first} to {last} are served"
            )
        if refusal.reason == "malformed-body":
            return (
                f"Error getting request for apiKey: {name}, apiVersion: {version}, "
                f"connectionId: {refusal.connection_id}, listenerName: {refusal.listener}; "
                f"its {refusal.size_bytes} bytes are malformed"
            )
        if refusal.reason == "failed-produce":
            return (
                f"error during produce request with correlation id {refusal.correlation_id} with ack=0: "
                f"{Errors.of(refusal.error_code).name}"
            )
        if refusal.reason == "invalid-receive":
            return self._invalid_receive(refusal.size_bytes)
        guess = f"Error parsing request header. Our best guess of the apiKeyId is: {key}"
        return f"{guess} ({name})" if name else f"{guess} (not served)" if key >= 0 else guess

    def _invalid_receive(self, size_bytes: int) -> str:
        why = ""
        if size_bytes > self._max_request_bytes:
            why = f" larger than {self._max_request_bytes}"
        elif size_bytes >= 0:  # the only other limit
            why = " larger than sasl.server.max.receive.size, which holds until the client is authenticated"
        first = (size_bytes & 0xFFFFFFFF).to_bytes(4, "big")
        hint = ""
        if first in _HTTP_METHODS:
            hint = f"; the bytes are an HTTP request's ({first.decode()!r})"
        elif first.startswith(_TLS_HANDSHAKE):
            hint = "; the bytes are a TLS handshake's: is security.protocol=SSL used with a plaintext listener?"
        return f"Invalid receive (size = {size_bytes}{why}){hint}"

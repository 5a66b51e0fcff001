"""One request that got no response but the end of its connection."""

from __future__ import annotations

from typing import NamedTuple


class Refusal(NamedTuple):
    """Facts of a refused request.

    ``reason`` is one of ``_refused_requests.REASONS``. ``api_key`` is the best guess, -1 without bytes for it, as
    ``api_version``. ``error_code`` is the first one of "failed-produce". ``size_bytes`` is the request's, for
    "invalid-receive" the declared one. ``connection_id`` is as Kafka writes it: both addresses, and two numbers.
    ``address`` is the client's alone.
    """

    reason: str
    api_key: int
    api_version: int
    correlation_id: int
    error_code: int
    size_bytes: int
    connection_id: str
    listener: str
    address: str = ""

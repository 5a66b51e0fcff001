"""A request whose connection was closed without a response."""

from typing import NamedTuple


class Refusal(NamedTuple):
    """Facts of a refused request.

    ``reason`` is one of ``_refused_requests.REASONS``. ``api_key`` and ``api_version`` are best guesses, -1 if the
    request was too short. ``error_code`` is the first error of "failed-produce". ``size_bytes`` is the size of the
    request, for "invalid-receive" the declared size. ``connection_id`` has Kafka's format: both addresses, and two
    numbers. ``address`` is the client's address alone.
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

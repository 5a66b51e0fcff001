"""A request that the authorizer refused, for the log."""

from __future__ import annotations

from kbroker.common.light_typing import NamedTuple


class Denial(NamedTuple):
    """What was refused, and how often since the last look. ``references``: how often the request named the resource."""

    principal: str
    host: str
    api_key: int
    operation: int
    kind: int
    name: str
    references: int
    times: int

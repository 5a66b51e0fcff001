"""The sender of a forwarded request."""

from __future__ import annotations

from typing import NamedTuple


class Client(NamedTuple):
    """Principal, such as User:alice, and address of a connection."""

    principal: str
    host: str
    is_token_authenticated: bool = False

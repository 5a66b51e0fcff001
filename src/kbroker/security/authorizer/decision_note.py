"""A decision of the authorizer, for the log."""

from __future__ import annotations

from typing import NamedTuple


class DecisionNote(NamedTuple):
    """What was asked, and how often since the last look. ``references``: how often the request named the resource;
    ``is_cut``: the principal or the name was longer than what is kept of it.
    """

    principal: str
    host: str
    api_key: int
    operation: int
    kind: int
    name: str
    references: int
    times: int
    is_cut: bool

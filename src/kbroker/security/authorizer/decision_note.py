"""A decision of the authorizer, for the log."""

from typing import NamedTuple


class DecisionNote(NamedTuple):
    """Decision and its count since the last call.

    ``references``: times that the request named the resource; ``is_cut``: the principal or the name was too long and is
    cut.
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

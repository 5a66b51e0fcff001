"""One part of a long list, and the addresses of its neighbours."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple
from urllib.parse import urlencode

from kbroker.console import ROOT
from kbroker.console.requests import Query

ROWS = 50


class Part(NamedTuple):
    """Rows ``first`` to ``last`` (from 1) of ``total``, on page ``number`` of ``pages``.

    ``previous`` and ``next``: addresses, None at an end.
    """

    rows: Sequence[Any]
    first: int
    last: int
    total: int
    number: int
    pages: int
    previous: str | None
    next: str | None


def part_of(rows: Sequence[Any], query: Query, path: str, size: int = ROWS) -> Part:
    """Return the part of the rows with the query's number ``page`` (from 1), or the last part if there are fewer.

    Args: ``path`` of the page. Raises: PageError 400.
    """
    count = max(1, -(-len(rows) // size))
    number = min(query.integer("page", 1, 1, 10**9), count)
    start = (number - 1) * size
    end = min(start + size, len(rows))

    def address(other: int) -> str | None:
        kept = {key: value for key, value in query.values.items() if value and key != "page"}
        return f"{ROOT}/{path}?{urlencode({**kept, 'page': other})}" if 1 <= other <= count else None

    return Part(
        rows[start:end],
        start + 1 if rows else 0,
        end,
        len(rows),
        number,
        count,
        address(number - 1),
        address(number + 1),
    )

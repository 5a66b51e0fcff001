"""Suggestions for misspelled names: the most similar known name."""

from __future__ import annotations

import re
from collections.abc import Iterable

#: Similarity, 0 to 1, from which on a name must be a misspelled known name.
ALMOST = 0.85
SIMILAR = 0.6


def similar_name(name: str, known: Iterable[str], likeness: float = SIMILAR) -> str | None:
    """Return the known name most similar to ``name``, ignoring case; None if no name is similar."""
    from difflib import get_close_matches  # imported here, so that a broker starts without it

    by_case = {one.lower(): one for one in known}
    found = get_close_matches(name.lower(), by_case, 1, likeness)
    return by_case[found[0]] if found else None


def misspelled_name(name: str, known: Iterable[str]) -> str | None:
    """Return the known dotted name that ``name`` misspells; None if it may be another valid name.

    Each word must be similar: group.share.max.size is not group.consumer.max.size.
    """
    from difflib import SequenceMatcher

    found = similar_name(name, known, ALMOST)
    if found is None:
        return None
    ours, theirs = (re.split("[._-]", one.lower()) for one in (name, found))
    if len(ours) != len(theirs):
        return found if "".join(ours) == "".join(theirs) else None
    alike = all(SequenceMatcher(None, *pair).ratio() >= SIMILAR for pair in zip(ours, theirs, strict=True))
    return found if alike else None


def did_you_mean(name: str, known: Iterable[str], likeness: float = SIMILAR) -> str:
    """Return the end of an error message, ``; did you mean NAME?``; empty if no known name is similar."""
    found = similar_name(name, known, likeness)
    return "" if found is None else f"; did you mean {found}?"

"""Suggestions for misspelled names: which known name is most like a given one."""

from __future__ import annotations

import re
from collections.abc import Iterable

#: Likeness, 0 to 1, from which on a name can only be a known one, misspelled.
ALMOST = 0.85
SIMILAR = 0.6


def similar_name(name: str, known: Iterable[str], likeness: float = SIMILAR) -> str | None:
    """Return the known name that is most like ``name``, whatever the case of its letters; None if none is."""
    from difflib import get_close_matches  # here: a broker starts without it

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

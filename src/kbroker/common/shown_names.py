"""Names of clients and quotas for display: bounded, in one line, and not mistakable for other text."""

from __future__ import annotations

import unicodedata

from kbroker.common import quotas
from kbroker.common.printable import printable_character

LONGEST = 80  # characters; client ids may have 32,767
_RIGHT_TO_LEFT = ("R", "AL", "AN")
_ISOLATE, _END = "\u2068", "\u2069"  # isolate the direction of the name
_MARKS_IN_A_ROW = 4  # maximum accents over one letter; a name can have hundreds


def shown_name(name: str) -> str:
    """Return a name in one line: control and direction-changing characters as \\u202e, the middle of a long one cut."""
    shown: list[str] = []
    marks = 0
    for character in name[: 4 * LONGEST] + name[-4 * LONGEST :] if len(name) > 8 * LONGEST else name:
        category = unicodedata.category(character)
        marks = marks + 1 if category[0] == "M" else 0
        if marks > _MARKS_IN_A_ROW:
            continue
        shown.append(printable_character(character))
    text = "".join(shown)
    if len(text) > LONGEST:
        text = f"{text[: LONGEST - 21]}…{text[-20:]}"
    turns = any(unicodedata.bidirectional(character) in _RIGHT_TO_LEFT for character in text)
    return f"{_ISOLATE}{text}{_END}" if turns else text


def client_name(principal: str | None, client_id: str | None) -> str:
    """Return a client's name for people: its user and its client id."""
    user = (principal or "").removeprefix("User:")
    return f"{shown_name(user) or '-'} / {shown_name(client_id or '') or '-'}"


def entity_name(entity: quotas.QuotaEntity) -> str:
    """Return a quota's entity as `kbroker quotas` names it."""
    return ", ".join(f"{kind} {shown_name(quotas.shown_name(name))}" for kind, name in entity.parts)

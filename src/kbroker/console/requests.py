"""Parameters of a page, from its address or a form, validated; duplicates are rejected."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple

from kbroker.client.offset_reset import datetime_ms
from kbroker.common.http_messages import QueryError, parameters

MAX_TEXT = 40_000  # characters of a value: client ids may have 32,767


class PageError(Exception):
    """A request that cannot be served; ``status`` of HTTP, a sentence for people, and the page to continue with."""

    def __init__(self, status: int, sentence: str, href: str = "") -> None:
        super().__init__(sentence)
        self.status = status
        self.sentence = sentence
        self.href = href


class Fields(dict[str, str]):
    """Fields of a form that a page shows again; a missing one is empty."""

    def __missing__(self, name: str) -> str:
        return ""


def sentence(text: str) -> str:
    """Return the text of an error as a sentence of a page."""
    return f"{text[:1].upper()}{text[1:]}."


class Query(NamedTuple):
    """Parameters by name."""

    values: Mapping[str, str]

    @staticmethod
    def parse(text: str) -> Query:
        """Parse a query string.

        Raises: PageError 400 for too many, duplicate or too long parameters, or invalid UTF-8.
        """
        try:
            found = parameters(text)
        except QueryError as error:
            raise PageError(400, sentence(str(error))) from None
        for name, value in found.items():
            if len(value) > MAX_TEXT:
                raise PageError(400, f"The parameter {name[:40]} has {len(value):,} characters; expected {MAX_TEXT:,}.")
        return Query(found)

    def text(self, name: str, default: str = "") -> str:
        """Return a value unchanged; the default if it is missing."""
        return self.values.get(name, default)

    def needed(self, name: str) -> str:
        """Return a required value. Raises: PageError 400."""
        value = self.values.get(name)
        if not value:
            raise PageError(400, f"The parameter {name} is missing or empty.")
        return value

    def choice(self, name: str, allowed: Collection[str], default: str | None = None) -> str:
        """Return a value that must be one of some words; the default if it is missing. Raises: PageError 400."""
        text = self.needed(name) if default is None else self.text(name, default)
        if text not in allowed:
            listed = (" or " if len(allowed) == 2 else ", ").join(allowed)
            raise PageError(400, f"{name} is {text[:40]!r}; expected {listed}.")
        return text

    def integer(self, name: str, default: int, lowest: int, highest: int) -> int:
        """Return an integer; the default if it is missing. Raises: PageError 400."""
        text = self.text(name).strip().replace(",", "")
        if not text:
            return default
        if len(text) > 20 or not text.removeprefix("-").isdecimal() or not lowest <= int(text) <= highest:
            raise PageError(400, f"{name} is {text[:40]!r}; expected a whole number from {lowest:,} to {highest:,}.")
        return int(text)

    def time_ms(self, name: str) -> int | None:
        """Return a UTC time, sent by browsers as 2026-01-31T12:30:05, in milliseconds since 1970; None if missing.

        Raises: PageError 400.
        """
        text = self.text(name).strip()
        if not text:
            return None
        try:
            return datetime_ms(text)
        except ValueError:
            raise PageError(400, f"{name} is {text[:40]!r}; expected a time such as 2026-01-31T12:30:05.") from None

"""The result of a decoder."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, NamedTuple

from kbroker.common.errors import UserError

Headers = Sequence[tuple[str, bytes | None]]
PACKAGES = 'pip install "kbroker[decoders]"'
MAX_SCHEMA_CHARACTERS = 1 << 26  # limit of names, symbols and zeros of decimals, which are not in the bytes of a record


class UndecodableError(ValueError):
    """Bytes that do not have the format; the message is one line and names the reason."""


class UnencodableError(ValueError):
    """Text that does not have the format, or does not fit the schema; the message is one line."""


class MissingPackageError(UserError):
    """Absence of a package that a decoder or a filter needs; the message names it."""

    def __init__(self, need: str, package: str | None) -> None:
        name = (package or "a package").partition(".")[0]
        super().__init__(f"{need} needs {name}, which is not installed: {PACKAGES}")


class Place(NamedTuple):
    """The record that a key or value belongs to, as far as decoders need it."""

    topic: str = ""
    is_key: bool = False
    headers: Headers = ()


class Decoded(NamedTuple):
    """A decoded key or value.

    ``format``: name of the format; ``text``: JSON if ``is_json``, with the digits of the original, else plain text.
    ``schema``: schema by which it was decoded, such as ``"Order, id 7"``; ``problem``: reason why no more precise
    format was used; ``parsed``: the JSON value, if it is known already.
    """

    format: str
    text: str
    is_json: bool = False
    schema: str = ""
    problem: str = ""
    parsed: Any = None

    @property
    def value(self) -> Any:
        """Return the JSON value, or the text."""
        if self.parsed is not None:
            return self.parsed
        return json.loads(self.text) if self.is_json else self.text


def check_schema_characters(count: int) -> None:
    """Check how many characters the schema adds to a result. Raises: UndecodableError."""
    if count > MAX_SCHEMA_CHARACTERS:
        raise UndecodableError(f"more than {MAX_SCHEMA_CHARACTERS} characters of names")


def json_text(value: Any) -> str:
    """Return a value as JSON, which UTF-8 can encode. Raises: UndecodableError for a value that is too deep."""
    try:
        text = json.dumps(value, ensure_ascii=False)
        try:
            text.encode()
        except UnicodeEncodeError:  # half of a surrogate pair, from a name in a schema
            text = json.dumps(value)
        return text
    except (RecursionError, ValueError, TypeError) as error:
        raise UndecodableError(f"the value cannot be JSON: {error}") from None

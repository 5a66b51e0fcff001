"""Records as lines: by a named format, by a template with the tokens of kcat, or as JSON."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from kbroker.decoders.record_json import one_line, record_line

if TYPE_CHECKING:
    from kbroker.client.consumer import Record
    from kbroker.decoders.decoded import Decoded
    from kbroker.decoders.decoders import DecodedRecord, Decoders
    from kbroker.decoders.expression import Expression

    _TextParam = click.ParamType[str]
else:
    _TextParam = click.ParamType  # not generic before click 8.2

FORMATS = ("value", "key-value", "full")
_TOKEN = re.compile(r"%(.)|\\(x[0-9a-fA-F]{1,2}|.)", re.DOTALL)
_ESCAPES = {"n": b"\n", "r": b"\r", "t": b"\t", "0": b"\0", "\\": b"\\"}

Part = Callable[["Shown"], bytes]


class Shown:
    """A record as it is printed: bytes, decoded where decoders are chosen."""

    def __init__(self, record: Record, decoded: DecodedRecord | None) -> None:
        self.record, self.decoded = record, decoded
        self.key = record.key if decoded is None else _bytes_of(decoded.key, record.key)
        self.value = record.value if decoded is None else _bytes_of(decoded.value, record.value)


def _bytes_of(decoded: Decoded | None, data: bytes | None) -> bytes | None:
    """Return the decoded text in one line; the bytes themselves where the decoder has failed; None for null."""
    if decoded is None or data is None:
        return None
    if decoded.problem:
        return data
    return one_line(decoded).encode("utf-8", "surrogatepass")


class Format(_TextParam):
    """The name of a format, or a template that contains a token or an escape."""

    name = "text"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return a valid format or template. Raises: BadParameter."""
        if value not in FORMATS:
            try:
                parts_of(value)
            except ValueError as error:
                self.fail(str(error), param, ctx)
        return str(value)


def parts_of(template: str) -> list[Part]:
    """Return the parts of a template. Raises: ValueError."""
    if _TOKEN.search(template) is None:
        raise ValueError(f"expected {', '.join(FORMATS)} or a template such as '%k %s\\n', got {template!r}")
    parts: list[Part] = []
    at = 0
    for found in _TOKEN.finditer(template):
        parts.append(_literal(os.fsencode(template[at : found.start()])))
        token, escape = found.groups()
        if token is not None:
            if token not in _TOKENS:
                raise ValueError(f"unknown token %{token}; known: {' '.join('%' + known for known in _TOKENS)}")
            parts.append(_TOKENS[token])
        elif len(escape) > 1:
            parts.append(_literal(bytes([int(escape[1:], 16)])))
        else:
            parts.append(_literal(_ESCAPES.get(escape, os.fsencode("\\" + escape))))
        at = found.end()
    return [*parts, _literal(os.fsencode(template[at:]))]


def _literal(data: bytes) -> Part:
    return lambda shown: data


def _headers(shown: Shown) -> bytes:
    return b",".join(
        b"%s=%s" % (_name(name), b"NULL" if value is None else value) for name, value in shown.record.headers
    )


def _name(text: str) -> bytes:
    """Return the bytes of a header's name, which need not be UTF-8."""
    return text.encode("utf-8", "surrogateescape")


def _number(value: int) -> bytes:
    return str(value).encode()


def _length(data: bytes | None) -> int:
    return -1 if data is None else len(data)


#: The tokens of kcat. Lengths are those of the printed bytes, -1 for null; %R is the length in four bytes.
_TOKENS: dict[str, Part] = {
    "s": lambda shown: shown.value or b"",
    "S": lambda shown: _number(_length(shown.value)),
    "R": lambda shown: _length(shown.value).to_bytes(4, "big", signed=True),
    "k": lambda shown: shown.key or b"",
    "K": lambda shown: _number(_length(shown.key)),
    "T": lambda shown: _number(shown.record.timestamp_ms),
    "h": _headers,
    "t": lambda shown: shown.record.topic.encode(),
    "p": lambda shown: _number(shown.record.partition),
    "o": lambda shown: _number(shown.record.offset),
    "%": _literal(b"%"),
}


class RecordPrinter:
    """Conversion of the records that match to the bytes that are printed.

    Args: ``form``: one of FORMATS, or a template; ``decoders``: None for the bytes as they are; ``pattern``: must be
    found in the key or the value; ``expression``: must be true, and needs ``decoders``.
    """

    def __init__(
        self,
        form: str,
        separator: bytes,
        *,
        as_json: bool = False,
        decoders: Decoders | None = None,
        pattern: re.Pattern[str] | None = None,
        expression: Expression | None = None,
    ) -> None:
        self._form, self._separator, self._as_json = form, separator, as_json
        self._parts = [] if form in FORMATS else parts_of(form)
        self._decoders, self._pattern, self._expression = decoders, pattern, expression

    def line(self, record: Record) -> bytes | None:
        """Return the bytes to print; None if the record does not match.

        Raises: ClickException for a missing package and for a filter that is too costly.
        """
        shown = Shown(record, self._decoded(record))
        if self._pattern is not None and not any(
            self._pattern.search(data.decode("utf-8", "replace")) for data in (shown.key, shown.value) if data
        ):
            return None
        if self._expression is not None and not self._matches(shown):
            return None
        if self._as_json:
            parts = None if shown.decoded is None else (shown.decoded.key, shown.decoded.value)
            return record_line(*record, decoded=parts)
        if self._parts:
            return b"".join(part(shown) for part in self._parts)
        return self._named(shown)

    def _decoded(self, record: Record) -> DecodedRecord | None:
        if self._decoders is None:
            return None
        decoded = self._decoders.record(*record)
        for name, part in (("key", decoded.key), ("value", decoded.value)):
            if part is not None and part.problem and not self._as_json:
                from kbroker.common.printable import printable

                where = f"{record.topic}-{record.partition} offset {record.offset}"
                click.echo(f"{where}: the {name} is printed as it is: {printable(part.problem)}", err=True)
        return decoded

    def _matches(self, shown: Shown) -> bool:
        from kbroker.decoders.expression import ExpressionError

        assert self._expression is not None
        assert shown.decoded is not None
        try:
            return self._expression.matches(shown.decoded)
        except ExpressionError as error:
            where = f"{shown.record.topic}-{shown.record.partition} offset {shown.record.offset}"
            raise click.ClickException(f"{where}: {error}") from None

    def _named(self, shown: Shown) -> bytes:
        value = b"null" if shown.value is None else shown.value
        if self._form == "value":
            return value + b"\n"
        key = b"null" if shown.key is None else shown.key
        if self._form == "key-value":
            return key + self._separator + value + b"\n"
        record = shown.record
        where = f"{record.topic}-{record.partition} offset {record.offset} time {record.timestamp_ms} "
        headers = b"".join(b"%s=%s " % (_name(name), b"null" if v is None else v) for name, v in record.headers)
        return where.encode() + headers + key + self._separator + value + b"\n"

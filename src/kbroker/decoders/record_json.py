"""Records as JSON documents in one line, in which decoded JSON keeps the digits of its numbers."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable
from typing import Any

from kbroker.common.java.java_text import replace_invalid_utf8
from kbroker.decoders.decoded import Decoded


def json_bytes(name: str, value: bytes | None) -> dict[str, Any]:
    """Return `{name: text}`, or `{name_base64: ...}` for bytes that are not UTF-8 text."""
    if value is None:
        return {name: None}
    try:
        return {name: value.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(value).decode()}


def one_line(decoded: Decoded) -> str:
    """Return decoded text; JSON in one line."""
    return decoded.text.replace("\n", " ").replace("\r", " ") if decoded.is_json else decoded.text


def record_line(
    topic: str,
    partition: int,
    offset: int,
    timestamp_ms: int,
    key: bytes | None,
    value: bytes | None,
    headers: Iterable[tuple[str, bytes | None]],
    decoded: tuple[Decoded | None, Decoded | None] | None = None,
) -> bytes:
    """Return a record as a document and the end of its line.

    Args: ``decoded``: key and value decoded; None for the bytes as they are.
    """
    fields = {
        "topic": _text(topic),
        "partition": str(partition),
        "offset": str(offset),
        "timestamp_ms": str(timestamp_ms),
    }
    for number, (name, data) in enumerate((("key", key), ("value", value))):
        part = None if decoded is None else decoded[number]
        if part is None or part.problem:
            fields.update({field: _text(text) for field, text in json_bytes(name, data).items()})
        else:
            fields[name] = one_line(part) if part.is_json else _text(part.text)
            fields[f"{name}_format"] = _text(part.format)
        if part is not None:
            fields.update({f"{name}_{more}": _text(text) for more, text in _notes(part) if text})
    rows = [{"name": replace_invalid_utf8(name), **json_bytes("value", data)} for name, data in headers]
    fields["headers"] = _text(rows)
    members = ", ".join(f'"{name}": {text}' for name, text in fields.items())
    return b"{" + members.encode("utf-8", "surrogatepass") + b"}\n"


def _notes(part: Decoded) -> tuple[tuple[str, str], ...]:
    return ("schema", part.schema), ("problem", part.problem)


def _text(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)

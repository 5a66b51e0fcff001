"""Found records as a file: JSON lines, or Parquet where pyarrow is installed."""

from __future__ import annotations

import io
from collections.abc import Sequence
from importlib.util import find_spec

from kbroker.console.record_scan import Match
from kbroker.decoders.record_json import one_line, record_line

#: Forms of a file.
KINDS = ("jsonl", "parquet") if find_spec("pyarrow") is not None else ("jsonl",)


def file_of(form: str, topic: str, found: Sequence[Match]) -> bytes:
    """Return records as the bytes of a file. Args: ``form``: one of KINDS."""
    return _json_lines(topic, found) if form == "jsonl" else _parquet(topic, found)


def _headers(match: Match) -> list[tuple[str, bytes | None]]:
    return [(name.decode("utf-8", "replace"), value) for name, value in match.record.headers]


def _json_lines(topic: str, found: Sequence[Match]) -> bytes:
    lines = []
    for match in found:
        record, decoded = match.record, match.decoded_whole
        lines.append(
            record_line(
                *(topic, match.partition, record.offset, record.timestamp_ms, record.key, record.value),
                _headers(match),
                None if decoded is None else (decoded.key, decoded.value),
            )
        )
    return b"".join(lines)


def _parquet(topic: str, found: Sequence[Match]) -> bytes:
    """Return the records with their bytes, and the decoded text beside them."""
    import pyarrow
    import pyarrow.parquet

    header = pyarrow.struct([("name", pyarrow.string()), ("value", pyarrow.binary())])
    schema = pyarrow.schema(
        [
            ("topic", pyarrow.string()),
            ("partition", pyarrow.int32()),
            ("offset", pyarrow.int64()),
            ("timestamp", pyarrow.timestamp("ms", tz="UTC")),
            ("key", pyarrow.binary()),
            ("value", pyarrow.binary()),
            ("key_text", pyarrow.string()),
            ("value_text", pyarrow.string()),
            ("headers", pyarrow.list_(header)),
        ]
    )
    rows = []
    for match in found:
        record, decoded = match.record, match.decoded_whole
        key, value = (None, None) if decoded is None else (decoded.key, decoded.value)
        rows.append(
            {
                "topic": topic,
                "partition": match.partition,
                "offset": record.offset,
                "timestamp": None if record.timestamp_ms < 0 else record.timestamp_ms,
                "key": record.key,
                "value": record.value,
                "key_text": None if key is None else one_line(key),
                "value_text": None if value is None else one_line(value),
                "headers": [{"name": name, "value": data} for name, data in _headers(match)],
            }
        )
    out = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows, schema), out, compression="snappy")
    return out.getvalue()

"""Bytes of the records of groups."""

from typing import Any

from kbroker.coordinator.modern_group.records import Formats, GroupRecord, decode_key, decode_value, encode


def assert_bytes(record: GroupRecord, formats: Formats, key: str, value: str | None, stored: Any = None) -> None:
    """Encode a record to these bytes, in hex, and decode it again. ``stored``: the decoded value, if another one."""
    written_key, written = encode(record, formats)
    assert (written_key.hex(), None if written is None else written.hex()) == (key, value)
    read = decode_key(written_key, formats)
    assert read == record.key
    if written is not None:
        assert read is not None
        assert decode_value(read, written, formats) == (record.value if stored is None else stored)

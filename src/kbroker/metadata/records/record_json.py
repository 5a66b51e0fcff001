"""Metadata records as JSON in the form of Kafka's tools. Source: ``DumpLogSegments``, ``MetadataJsonConverters``."""

from __future__ import annotations

import re
from typing import Any

from kbroker.log.tools.message_json import message_json
from kbroker.metadata.records.metadata_record import decode_record

_WORD = re.compile(r"(?<=[a-z])(?=[A-Z])")


def record_json(value: bytes) -> dict[str, Any]:
    """Return the value of a record of the metadata log, ready for ``json.dumps``.

    Raises: UnknownRecordError, ProtocolError: as decode_record.
    """
    name, version, body = decode_record(value)
    return {"type": _WORD.sub("_", name).upper(), "version": version, "data": message_json(name, version, body)}

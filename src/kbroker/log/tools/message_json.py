"""Messages as JSON in the form of Kafka's tools. Source: the generated ``*JsonConverter`` classes."""

from __future__ import annotations

import base64
import uuid
from typing import Any

from kbroker.log.checkpoints import uuid_to_text
from kbroker.protocol.codec import Body
from kbroker.protocol.schema import data_table, within


def message_json(name: str, version: int, body: Body) -> dict[str, Any]:
    """Return a decoded struct that is not an API message, ready for ``json.dumps``.

    It has the fields of the version in the order of Kafka's definition, without tagged ones that have their default.
    """
    table = data_table(name)
    return _struct(table["fields"], table.get("structs", {}), version, body)


def _struct(fields: list[Any], structs: dict[str, Any], version: int, body: Body) -> dict[str, Any]:
    out = {}
    for field in fields:
        name, value = field["name"], body[field["name"]]
        if not within(version, field["versions"]) or ("tag" in field and _is_default(field, value)):
            continue
        kind = field["type"].removeprefix("[]")
        inner = field.get("fields") or structs.get(kind, {}).get("fields")
        out[name[0].lower() + name[1:]] = _value(value, inner, structs, version)
    return out


def _is_default(field: dict[str, Any], value: Any) -> bool:
    return bool(value == field["default"]) if "default" in field else value in (0, "", b"", [], uuid.UUID(int=0))


def _value(value: Any, inner: list[Any] | None, structs: dict[str, Any], version: int) -> Any:
    if isinstance(value, list):
        return [_value(one, inner, structs, version) for one in value]
    if isinstance(value, dict) and inner is not None:
        return _struct(inner, structs, version, value)
    if isinstance(value, uuid.UUID):
        return uuid_to_text(value)
    return base64.b64encode(value).decode() if isinstance(value, bytes) else value

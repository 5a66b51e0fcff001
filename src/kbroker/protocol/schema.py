"""Compiler of one message version of the wire tables (``messages/``, compiled in by setup.py) into a Plan of the codec.

The index is unpacked on its first use, a message's table on the first use of one of its versions.
"""

import functools
from typing import Any, NamedTuple

from kbroker.common.errors import ProtocolError
from kbroker.protocol._encoder import Plan, message_table

_SCALARS = frozenset(
    ["bool", "int8", "int16", "uint16", "int32", "int64", "float64", "uuid", "string", "bytes", "records"]
)
_NEVER = (1, 0)


class ApiSchema(NamedTuple):  # dataclasses cost 13 ms of import
    """One API: its key, name and version ranges (inclusive).

    ``advertised_versions`` is the range for ApiVersions; Produce advertises 0-2, which old librdkafka requires in the
    response, though no request may use them. ``flexible_from``: first version with compact types and tagged fields, or
    None.
    """

    key: int
    name: str
    request_versions: tuple[int, int]
    response_versions: tuple[int, int]
    advertised_versions: tuple[int, int]
    flexible_from: int | None
    tier: int
    listeners: tuple[str, ...]
    latest_version_unstable: bool
    file: str

    def is_flexible(self, version: int) -> bool:
        """Return whether requests and responses of `version` are flexible (both are from the same version on)."""
        return self.flexible_from is not None and version >= self.flexible_from


def version_range(text: str | None) -> tuple[int, int]:
    """Return (first, last) of "3", "0-12" or "4+"; an empty range for "none" and for None."""
    if text is None or text == "none":
        return _NEVER
    if text.endswith("+"):
        return int(text[:-1]), 32767
    first, dash, last = text.partition("-")
    return int(first), int(last if dash else first)


def within(version: int, text: str | None) -> bool:
    """Return whether a range such as "0-12", "4+" or "none" contains a version."""
    first, last = version_range(text)
    return first <= version <= last


@functools.cache
def apis() -> dict[int, ApiSchema]:
    """Return every known API by key; treat it as read-only."""
    out = {}
    for row in message_table("index.json"):
        flexible = version_range(row["flexible"])
        out[row["key"]] = ApiSchema(
            key=row["key"],
            name=row["name"],
            request_versions=version_range(row["request"]),
            response_versions=version_range(row["response"]),
            advertised_versions=version_range(row["advertise"]),
            flexible_from=None if flexible == _NEVER else flexible[0],
            tier=row["tier"],
            listeners=tuple(row["listeners"]),
            latest_version_unstable=row.get("latest_version_unstable", False),
            file=row["file"],
        )
    return out


def api(key: int) -> ApiSchema:
    """Return the API of `key`.

    Raises: ProtocolError: no such API in the tables.
    """
    found = apis().get(key)
    if found is None:
        raise ProtocolError(f"unknown api key {key}")
    return found


@functools.cache
def api_by_name(name: str) -> ApiSchema:
    """Return the API called `name` ("Fetch").

    Raises: ProtocolError: no such API in the tables.
    """
    for found in apis().values():
        if found.name == name:
            return found
    raise ProtocolError(f"unknown api {name!r}")


@functools.cache
def _messages(key: int) -> dict[str, Any]:
    messages: dict[str, Any] = message_table(api(key).file)
    return messages


@functools.cache
def _others(file: str) -> dict[str, Any]:
    messages: dict[str, Any] = message_table(file)
    return messages


@functools.cache
def request_plan(key: int, version: int) -> Plan:
    """Return the plan of a request body.

    Raises: ProtocolError: unknown API or version.
    """
    return _message_plan(f"{api(key).name} request", _messages(key)["request"], version)


@functools.cache
def response_plan(key: int, version: int) -> Plan:
    """Return the plan of a response body.

    Raises: ProtocolError: unknown API or version.
    """
    return _message_plan(f"{api(key).name} response", _messages(key)["response"], version)


@functools.cache
def carries_throttle_time(key: int, version: int) -> bool:
    """Return whether a response has throttle_time_ms in this version.

    Raises: ProtocolError: unknown API.
    """
    fields = _messages(key)["response"]["fields"]
    return any(field["name"] == "ThrottleTimeMs" and within(version, field["versions"]) for field in fields)


@functools.cache
def header_plan(name: str, version: int) -> Plan:
    """Return the plan of RequestHeader (1, 2) or ResponseHeader (0, 1)."""
    return _message_plan(name, _others("headers.json")[name], version)


@functools.cache
def data_plan(name: str, version: int) -> Plan:
    """Return the plan of a struct that is not an API message, such as AbortedTxn or TopicRecord.

    Raises: ProtocolError: unknown name or version.
    """
    return _message_plan(name, data_table(name), version)


@functools.cache
def data_versions(name: str) -> tuple[int, int]:
    """Return (first, last) version of a struct that is not an API message."""
    return version_range(data_table(name)["versions"])


def data_table(name: str) -> dict[str, Any]:
    """Return the table of a struct that is not an API message; treat it as read-only.

    Raises: ProtocolError: unknown name.
    """
    found: dict[str, Any] | None = _others("data.json").get(name) or _others("metadata.json").get(name)
    if found is None:
        raise ProtocolError(f"unknown data struct {name!r}")
    return found


def _message_plan(name: str, message: dict[str, Any], version: int) -> Plan:
    if not within(version, message["versions"]):
        raise ProtocolError(f"{name} has no version {version}, only {message['versions']}")
    flexible = within(version, message["flexible"])
    return _struct_plan(name, message["fields"], message.get("structs", {}), version, flexible)


def _struct_plan(name: str, fields: list[Any], structs: dict[str, Any], version: int, flexible: bool) -> Plan:
    untagged: list[Any] = []
    tagged: list[Any] = []
    for field in fields:
        present = within(version, field["versions"])
        tag = field.get("tag", -1) if present else -1
        is_array = field["type"].startswith("[]")
        kind = field["type"].removeprefix("[]")
        child = None
        if kind not in _SCALARS:
            inner = field.get("fields") or structs[kind]["fields"]
            child = _struct_plan(kind, inner, structs, version, flexible)
        compact = flexible and field.get("flexible") != "none"
        nullable = within(version, field.get("nullable"))
        spec = (
            field["name"],
            "struct" if child else kind,
            is_array,
            nullable,
            compact,
            present,
            field.get("ignorable", False),
            tag,
            _default(field, kind, is_array),
            child,
        )
        (tagged if tag >= 0 else untagged).append(spec)
    tagged.sort(key=lambda spec: spec[7])
    return Plan(name, flexible, untagged + tagged)


def _default(field: dict[str, Any], kind: str, is_array: bool) -> Any:
    """Return the value of an absent field; for arrays and structs, any value but None means empty."""
    if "default" in field:
        return field["default"]
    if is_array or kind not in _SCALARS:
        return ()
    if kind == "string":
        return ""
    if kind in ("bytes", "records"):
        return b""
    if kind == "uuid":
        import uuid

        return uuid.UUID(int=0)
    return {"bool": False, "float64": 0.0}.get(kind, 0)

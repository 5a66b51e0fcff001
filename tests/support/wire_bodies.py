"""Random message bodies drawn from the tables of the wire format, to compare codecs."""

import json
import random
import string
import uuid
from pathlib import Path
from typing import Any

import kbroker.protocol.messages
from kbroker.protocol.schema import ApiSchema, version_range

FOLDER = Path(kbroker.protocol.messages.__file__).parent
TEXT = string.ascii_letters + string.digits + "-._äß漢🙂 "
LIMITS = {"int8": 7, "int16": 15, "int32": 31, "int64": 63}


def message_of(api: ApiSchema, side: str) -> dict[str, Any]:
    """Return the table of one side, "request" or "response"."""
    table: dict[str, Any] = json.loads((FOLDER / api.file).read_text(encoding="utf-8"))[side]
    return table


def within(version: int, text: str | None) -> bool:
    first, last = version_range(text)
    return first <= version <= last


def random_body(rng: random.Random, message: dict[str, Any], version: int) -> dict[str, Any]:
    """Return a body with exactly the fields of the version."""
    return _struct(rng, message["fields"], message.get("structs", {}), version)


def _struct(rng: random.Random, fields: list[Any], structs: dict[str, Any], version: int) -> dict[str, Any]:
    return {f["name"]: _field(rng, f, structs, version) for f in fields if within(version, f["versions"])}


def _field(rng: random.Random, field: dict[str, Any], structs: dict[str, Any], version: int) -> Any:
    if within(version, field.get("nullable")) and rng.random() < 0.2:
        return None
    kind = field["type"]
    if kind.startswith("[]"):
        return [_value(rng, field, kind[2:], structs, version) for _ in range(rng.choice([0, 1, 1, 2, 3]))]
    return _value(rng, field, kind, structs, version)


def _value(rng: random.Random, field: dict[str, Any], kind: str, structs: dict[str, Any], version: int) -> Any:
    """Return a random value; codes and times are within the range of codecs with richer types than the broker's."""
    name = field["name"]
    if kind == "bool":
        return rng.random() < 0.5
    if kind == "int16" and "ErrorCode" in name:
        return rng.choice([-1, 0, 3, 35, 100])
    if kind == "int32" and name.endswith("Ms"):
        return rng.choice([0, 1, 12345, 2**30])
    if kind == "int64" and ("Time" in name or name.endswith("Ms")):
        return rng.choice([0, 1_700_000_000_123, 2**40])
    if kind in LIMITS:
        bits = LIMITS[kind]
        return rng.choice([0, 1, -1, 2**bits - 1, -(2**bits), rng.randrange(-(2**bits), 2**bits)])
    if kind == "uint16":
        return rng.choice([0, 1, 65535])
    if kind == "float64":
        return rng.choice([0.0, -1.5, 1e300])
    if kind == "uuid":
        return rng.choice([uuid.UUID(int=0), uuid.UUID(int=rng.getrandbits(128))])
    if kind == "string":
        return "".join(rng.choices(TEXT, k=rng.choice([0, 1, 5, 200])))
    if kind in ("bytes", "records"):
        return rng.randbytes(rng.choice([0, 1, 20, 300]))
    return _struct(rng, field.get("fields") or structs[kind]["fields"], structs, version)

"""Compatibility of a table's schema with a new one: columns are only ever added, at any depth."""

from __future__ import annotations

from typing import Any


def first_loss(old: Any, new: Any, at: str = "") -> str | None:
    """The first column of `old` that `new` lacks or has as another type; None when columns were only added.

    Args: schemas as Spark writes them (`StructType.jsonValue()`).
    """
    if not (isinstance(old, dict) and isinstance(new, dict)) or old.get("type") != new.get("type"):
        return None if old == new else f"{at or 'the schema'} was {_shown(old)} and would be {_shown(new)}"
    if old["type"] == "struct":
        fields = {field["name"]: field for field in new["fields"]}
        for field in old["fields"]:
            name = f"{at}.{field['name']}" if at else field["name"]
            if field["name"] not in fields:
                return f"{name} would be gone"
            loss = first_loss(field["type"], fields[field["name"]]["type"], name)
            if loss is not None:
                return loss
        return None
    parts = ("elementType", "keyType", "valueType")
    losses = (first_loss(old[part], new[part], at) for part in parts if part in old)
    return next((loss for loss in losses if loss is not None), None)


def _shown(kind: Any) -> str:
    return str(kind["type"]) if isinstance(kind, dict) else str(kind)

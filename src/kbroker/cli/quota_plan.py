"""Read a file of quotas, and compare it with the quotas of a cluster."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import click

from kbroker.cli.quota_limits import parse_limit
from kbroker.common.quotas import CLIENT_KEYS, ENTITY_TYPES, IP_KEYS, QuotaEntity

Quotas = dict[QuotaEntity, dict[str, float]]
KEYS = sorted({*CLIENT_KEYS, *IP_KEYS})
TOO_DEEP = "nested too deeply"
SHAPE = "a list of {entity: {user: NAME, client-id: NAME, or ip: ADDRESS}, quotas: {KEY: NUMBER}}; null is the default"


class Difference(NamedTuple):
    """One quota that differs; ``before`` or ``after`` is None where it is not set."""

    entity: QuotaEntity
    key: str
    before: float | None
    after: float | None


def read_file(path: Path) -> Quotas:
    """Quotas by entity of a YAML file, or a JSON file by its name. Raises: click.ClickException, in one line."""
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise _wrong(path, "expected UTF-8 text, found other bytes; save the file as UTF-8") from None
    document = _parse_json(path, text) if path.suffix.lower() == ".json" else _parse_yaml(path, text)
    if not isinstance(document, list):
        raise _wrong(path, f"expected {SHAPE}")
    quotas: Quotas = {}
    for number, entry in enumerate(document, 1):
        where = f"entry {number}"
        if not isinstance(entry, dict) or set(entry) != {"entity", "quotas"}:
            raise _wrong(path, f"{where}: expected entity and quotas, of {SHAPE}")
        entity = _entity(path, where, entry["entity"])
        if entity in quotas:
            raise _wrong(path, f"{where}: duplicate entry for {entity}; keep one")
        quotas[entity] = _values(path, f"{where} ({entity})", entry["quotas"])
    return quotas


def differences(current: Mapping[QuotaEntity, Mapping[str, float]], wanted: Quotas, prune: bool) -> list[Difference]:
    """What must change so that each wanted entity has exactly these quotas; with ``prune``, no other has any."""
    found = []
    for entity in [*wanted, *(other for other in current if prune and other not in wanted)]:
        before, after = current.get(entity, {}), wanted.get(entity, {})
        for key in sorted({*before, *after}):
            if before.get(key) != after.get(key):
                found.append(Difference(entity, key, before.get(key), after.get(key)))
    return found


def changes(found: Sequence[Difference]) -> dict[QuotaEntity, dict[str, float | None]]:
    """The differences as one request makes them."""
    ops: dict[QuotaEntity, dict[str, float | None]] = {}
    for entity, key, _, after in found:
        ops.setdefault(entity, {})[key] = after
    return ops


def _parse_json(path: Path, text: str) -> Any:
    try:
        return json.loads(text, object_pairs_hook=lambda pairs: _unique(path, pairs))
    except json.JSONDecodeError as error:
        raise _wrong(path, f"line {error.lineno}: {error.msg}") from None
    except RecursionError:
        raise _wrong(path, TOO_DEEP) from None
    except ValueError:
        raise _wrong(path, "expected numbers of at most 308 digits, found a longer one") from None


def _parse_yaml(path: Path, text: str) -> Any:
    try:
        import importlib

        yaml: Any = importlib.import_module("yaml")
    except ImportError:
        raise _wrong(
            path, "YAML needs PyYAML: pip install 'kbroker[yaml]' (a file named .json needs nothing)"
        ) from None

    class Loader(yaml.SafeLoader):  # type: ignore[misc]  # a duplicate key is an error, not the last value
        pass

    def mapping(loader: Any, node: Any) -> dict[Any, Any]:
        return _unique(path, loader.construct_pairs(node, deep=True), f"line {node.start_mark.line + 1}: ")

    def scalar(construct: Any) -> Any:
        def checked(loader: Any, node: Any) -> Any:
            try:
                return construct(loader, node)
            except (ValueError, AttributeError, KeyError):  # matches YAML's pattern of a date or number, but is invalid
                shown = node.value if len(node.value) <= 40 else f"{node.value[:40]}..."
                kind = node.tag.rpartition(":")[2]
                line = f"line {node.start_mark.line + 1}"
                raise _wrong(
                    path, f"{line}: expected a valid {kind}, got {shown!r}; if it is a name, quote it"
                ) from None

        return checked

    Loader.add_constructor("tag:yaml.org,2002:map", mapping)
    for kind in ("bool", "int", "float", "timestamp"):
        tag = f"tag:yaml.org,2002:{kind}"
        Loader.add_constructor(tag, scalar(yaml.SafeLoader.yaml_constructors[tag]))
    try:
        return yaml.load(text, Loader)
    except RecursionError:
        raise _wrong(path, TOO_DEEP) from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f"line {mark.line + 1}: " if mark is not None else ""
        raise _wrong(path, f"{line}{getattr(error, 'problem', None) or error}") from None


def _unique(path: Path, pairs: list[tuple[Any, Any]], where: str = "") -> dict[Any, Any]:
    found: dict[Any, Any] = {}
    for key, value in pairs:
        if not isinstance(key, str):
            raise _wrong(path, f"{where}expected a string as key, got {key!r}; quote it")
        if key in found:
            raise _wrong(path, f"{where}duplicate key {key}; keep one")
        found[key] = value
    return found


def _entity(path: Path, where: str, names: Any) -> QuotaEntity:
    if not isinstance(names, dict) or not names:
        raise _wrong(path, f"{where}: expected an entity of a user, a client-id, both, or an ip, got {names!r}")
    for kind, name in names.items():
        if kind not in ENTITY_TYPES:
            raise _wrong(path, f"{where}: expected an entity type ({', '.join(ENTITY_TYPES)}), got {kind!r}")
        if name is not None and not isinstance(name, str):
            raise _wrong(path, f"{where}: expected a string as {kind}, got {name!r}; quote it")
    return QuotaEntity.of(names)


def _values(path: Path, where: str, values: Any) -> dict[str, float]:
    if not isinstance(values, dict):
        raise _wrong(path, f"{where}: expected quotas as KEY: NUMBER ({{}} removes all), got {values!r}")
    return {key: _limit(path, where, key, value) for key, value in values.items()}


def _limit(path: Path, where: str, key: str, value: Any) -> float:
    if isinstance(value, str):
        try:
            value = parse_limit(key, value)
        except ValueError as error:
            raise _wrong(path, f"{where}: {error}") from None
    if isinstance(value, bool) or not isinstance(value, int | float) or value != value:
        raise _wrong(path, f"{where}: {key}: expected a number, got {value!r}")
    try:
        return float(value)
    except OverflowError:
        raise _wrong(path, f"{where}: expected a number below 1e308 as quota, got a larger one") from None


def _wrong(path: Path, text: str) -> click.ClickException:
    return click.ClickException(f"{path}: {text}")

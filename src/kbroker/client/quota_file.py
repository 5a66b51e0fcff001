"""File of quotas: entities with their limits, in YAML or JSON; errors report line and column."""

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from kbroker.common.quota_limits import check_key, parse_limit
from kbroker.common.quotas import CLIENT_KEYS, ENTITY_TYPES, IP_KEYS, QuotaEntity, check_name
from kbroker.common.similar_names import ALMOST, did_you_mean

KEYS = sorted({*CLIENT_KEYS, *IP_KEYS})
MAX_CHARACTERS = 16 << 20  # of a file: enough for a hundred thousand entities
TOO_DEEP = "nested too deeply"
SHAPE = "a list of {entity: {user: NAME, client-id: NAME, or ip: ADDRESS}, quotas: {KEY: NUMBER}}; null is the default"
#: Fields of an entry; `brokers` is printed by `kbroker quotas list --json`, and ignored here.
NEEDED, ALLOWED = {"entity", "quotas"}, {"entity", "quotas", "brokers"}


class DesiredQuotas(dict[QuotaEntity, dict[str, float]]):
    """Quotas by entity, as a file lists them. ``path``: of the file."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = path
        self._places: dict[tuple[QuotaEntity, str], str] = {}

    def put_place(self, entity: QuotaEntity, key: str, place: str) -> None:
        """Record the place of a quota in the file; an empty key is for the entity."""
        self._places[entity, key] = place

    def place_of(self, entity: QuotaEntity, text: str) -> str:
        """Return file and line of the first quota of an entity that is named in the text, else of the entity.

        Empty for an entity that is not in the file.
        """
        if entity not in self:
            return ""
        found = {key: re.search(rf"(?<![\w.]){re.escape(key)}(?![\w.])", text) for key in self[entity]}
        named = [(match.start(), key) for key, match in found.items() if match is not None]
        return f"{self.path}: {self._places[entity, min(named)[1] if named else '']}"


class QuotaFileError(ValueError):
    """An invalid file of quotas. The message is one line: file, place, expected and found value.

    ``line``, ``column``: from 1; None if unknown (in JSON, the place is the number of the entry).
    """

    def __init__(self, path: Path, text: str, line: int | None = None, column: int | None = None) -> None:
        place = "" if line is None else _at(line, column)
        super().__init__(f"{path}: {place}{text}")
        self.path = path
        self.line = line
        self.column = column


def read_quota_file(path: Path | str) -> DesiredQuotas:
    """Read quotas by entity from a YAML file, or from JSON if the suffix says so; limits may have units: 1 MiB/s, 50 %.

    Raises: QuotaFileError; OSError when it cannot be read.
    """
    path = Path(path)
    try:
        with path.open(encoding="utf-8") as file:
            text = file.read(MAX_CHARACTERS + 1)
    except UnicodeDecodeError:
        raise QuotaFileError(path, "expected UTF-8 text, found other bytes; save the file as UTF-8") from None
    if len(text) > MAX_CHARACTERS:
        raise QuotaFileError(path, f"expected a file of quotas, of at most {MAX_CHARACTERS:,} characters, found more")
    return parse_quotas(text, path)


def parse_quotas(text: str, path: Path) -> DesiredQuotas:
    """Parse the text of a file of quotas; ``path`` determines the format, and is part of the messages."""
    file = _File(path)
    try:
        if path.suffix.lower() == ".json":
            return file.quotas(_json_document(file, text))
        return _of_yaml(file, text)
    except RecursionError:
        raise QuotaFileError(path, TOO_DEEP) from None


class _Node(NamedTuple):
    """A value of the document: ``kind`` is list, mapping or scalar.

    ``content``: the value of a scalar; otherwise a function, called once, that returns the nodes or pairs of nodes.
    Rejected nodes are never expanded, so an alias of aliases costs nothing.
    """

    kind: str
    content: Any
    line: int | None = None
    column: int | None = None
    is_empty: bool = False

    @property
    def shown(self) -> str:
        """Return the value as shown in error messages."""
        if self.kind == "scalar":
            return _short(repr(self.content))
        return {"list": "[]", "mapping": "{}"}[self.kind] if self.is_empty else f"a {self.kind}"


class _File:
    """Validation of a document as a file of quotas."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def wrong(self, node: _Node, text: str) -> QuotaFileError:
        return QuotaFileError(self.path, text, node.line, node.column)

    def quotas(self, document: _Node) -> DesiredQuotas:
        if document.kind != "list":
            raise self.wrong(document, f"expected {SHAPE}")
        quotas = DesiredQuotas(self.path)
        for number, entry in enumerate(document.content(), 1):
            where = "" if entry.line is not None else f"entry {number}: "
            expected = f"{where}expected entity and quotas, of {SHAPE}"
            fields = self._fields(entry, where, expected)
            for key, (named, _) in fields.items():
                if key not in ALLOWED:
                    raise self.wrong(named, f"{expected}; found {key!r}{did_you_mean(key, sorted(NEEDED), ALMOST)}")
            if not fields.keys() >= NEEDED:
                raise self.wrong(entry, expected)
            entity = self._entity(fields["entity"][1], where)
            if entity in quotas:
                raise self.wrong(entry, f"{where}duplicate entry for {entity}; keep one")
            limits = self._fields_of_quotas(fields["quotas"][1], f"{where}{entity}: ")
            quotas[entity] = {key: self._limit(*at, key, f"{where}{entity}: ") for key, at in limits.items()}
            for key, (named, _) in {"": (fields["entity"][1], None), **limits}.items():
                quotas.put_place(entity, key, where if named.line is None else _at(named.line, named.column))
        return quotas

    def _fields(self, node: _Node, where: str, expected: str) -> dict[str, tuple[_Node, _Node]]:
        """Return a mapping by its keys, each with the nodes of the key and the value."""
        if node.kind != "mapping":
            raise self.wrong(node, expected)
        fields: dict[str, tuple[_Node, _Node]] = {}
        for key, value in node.content():
            if key.kind != "scalar" or not isinstance(key.content, str):
                raise self.wrong(key, f"{where}expected a string as key, got {key.shown}; quote it")
            if key.content in fields:
                raise self.wrong(key, f"{where}duplicate key {key.content}; keep one")
            fields[key.content] = key, value
        return fields

    def _entity(self, node: _Node, where: str) -> QuotaEntity:
        expected = f"{where}expected an entity of a user, a client-id, both, or an ip, got {node.shown}"
        names: dict[str, str | None] = {}
        for kind, (key, name) in self._fields(node, where, expected).items():
            if kind not in ENTITY_TYPES:
                meant = did_you_mean(kind, ENTITY_TYPES, ALMOST)
                raise self.wrong(
                    key, f"{where}expected an entity type ({', '.join(ENTITY_TYPES)}), got {_short(repr(kind))}{meant}"
                )
            if name.kind != "scalar" or not (name.content is None or isinstance(name.content, str)):
                raise self.wrong(name, f"{where}expected a string as {kind}, got {name.shown}; quote it")
            try:
                check_name(kind, name.content)
            except ValueError as error:
                raise self.wrong(name, f"{where}{error}") from None
            names[kind] = name.content
        if not names:
            raise self.wrong(node, expected)
        return QuotaEntity.of(names)

    def _fields_of_quotas(self, node: _Node, where: str) -> dict[str, tuple[_Node, _Node]]:
        expected = f"{where}expected quotas as KEY: NUMBER ({{}} removes all), got {node.shown}"
        return self._fields(node, where, expected)

    def _limit(self, named: _Node, node: _Node, key: str, where: str) -> float:
        try:
            check_key(key)
        except ValueError as error:
            raise self.wrong(named, f"{where}{error}") from None
        value = node.content
        if node.kind == "scalar" and isinstance(value, str):
            try:
                value = parse_limit(key, value)
            except ValueError as error:
                raise self.wrong(node, f"{where}{error}") from None
        if node.kind != "scalar" or isinstance(value, bool) or not isinstance(value, int | float) or value != value:
            raise self.wrong(node, f"{where}{key}: expected a number, got {node.shown}")
        try:
            return float(value)
        except OverflowError:
            text = f"{where}{key}: expected a number below 1e308 as quota, got a larger one"
            raise self.wrong(node, text) from None


def _at(line: int, column: int | None) -> str:
    return f"line {line}, column {column}: "


def _short(text: str) -> str:
    return text if len(text) <= 40 else f"{text[:40]}..."


# ---------------------------------------------------------------- JSON


def _json_document(file: _File, text: str) -> _Node:
    try:
        return _json_node(json.loads(text, object_pairs_hook=_Pairs))
    except json.JSONDecodeError as error:
        raise QuotaFileError(file.path, error.msg, error.lineno, error.colno) from None
    except QuotaFileError:
        raise
    except ValueError:
        raise QuotaFileError(file.path, "expected numbers of at most 308 digits, found a longer one") from None


class _Pairs(list[tuple[str, Any]]):
    """A JSON object with all of its keys, including duplicates."""


def _json_node(value: Any) -> _Node:
    if isinstance(value, _Pairs):
        pairs = [(_Node("scalar", key), _json_node(inner)) for key, inner in value]
        return _Node("mapping", lambda: pairs, is_empty=not pairs)
    if isinstance(value, list):
        elements = [_json_node(inner) for inner in value]
        return _Node("list", lambda: elements, is_empty=not elements)
    return _Node("scalar", value)


# ---------------------------------------------------------------- YAML


def _of_yaml(file: _File, text: str) -> DesiredQuotas:
    try:
        import importlib

        yaml: Any = importlib.import_module("yaml")
    except ImportError:
        raise QuotaFileError(
            file.path, "YAML needs PyYAML: pip install 'kbroker[yaml]' (a file named .json needs nothing)"
        ) from None
    try:
        loader = yaml.SafeLoader(text)
        try:
            root = loader.get_single_node()
            if root is None:
                raise QuotaFileError(file.path, f"expected {SHAPE}, found nothing")
            return file.quotas(_YamlNodes(file, yaml, loader.construct_object).node(root))
        finally:
            loader.dispose()
    except yaml.reader.ReaderError as error:
        before = text[: error.position]
        line, column = before.count("\n") + 1, len(before) - before.rfind("\n")
        found = f"U+{ord(text[error.position]):04X}"
        raise QuotaFileError(file.path, f"expected printable characters, found {found}", line, column) from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = (None, None) if mark is None else (mark.line + 1, mark.column + 1)
        raise QuotaFileError(file.path, getattr(error, "problem", None) or str(error), *where) from None


class _YamlNodes:
    """Converts PyYAML's nodes to `_Node`."""

    def __init__(self, file: _File, yaml: Any, construct: Callable[[Any], Any]) -> None:
        self._file = file
        self._yaml = yaml
        self._construct = construct

    def node(self, found: Any) -> _Node:
        line, column = found.start_mark.line + 1, found.start_mark.column + 1
        kind = found.tag.rpartition(":")[2]
        if isinstance(found, self._yaml.ScalarNode):
            return _Node("scalar", self._scalar(found, kind, line, column), line, column)
        is_list = isinstance(found, self._yaml.SequenceNode)
        if kind != ("seq" if is_list else "map"):
            text = f"expected a plain {'list' if is_list else 'mapping'}, got one of the type {found.tag}"
            raise QuotaFileError(self._file.path, text, line, column)
        if is_list:
            return _Node("list", lambda: map(self.node, found.value), line, column, not found.value)
        return _Node("mapping", lambda: self._pairs(found), line, column, not found.value)

    def _pairs(self, found: Any) -> Iterator[tuple[_Node, _Node]]:
        for key, value in found.value:
            yield self.node(key), self.node(value)

    def _scalar(self, found: Any, kind: str, line: int, column: int) -> Any:
        try:
            return self._construct(found)
        except (ValueError, AttributeError, KeyError):  # matches YAML's pattern of a date or number, but is invalid
            text = f"expected a valid {kind}, got {_short(found.value)!r}; if it is a name, quote it"
            raise QuotaFileError(self._file.path, text, line, column) from None

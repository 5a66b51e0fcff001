"""Document of a file that people write, in YAML or JSON: nodes with their places, so that errors report them."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from kbroker.common.errors import UserError

MAX_CHARACTERS = 16 << 20  # maximum size of a file: enough for a hundred thousand entities
TOO_DEEP = "nested too deeply"


class DocumentError(UserError, ValueError):
    """An invalid file. The message is one line: file, place, expected and found value.

    ``line``, ``column``: from 1; None if unknown (in JSON, the place is the number of the entry).
    """

    def __init__(self, path: Path, text: str, line: int | None = None, column: int | None = None) -> None:
        place = "" if line is None else at(line, column)
        super().__init__(f"{path}: {place}{text}")
        self.path = path
        self.line = line
        self.column = column


class Node(NamedTuple):
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
            return short(repr(self.content))
        return {"list": "[]", "mapping": "{}"}[self.kind] if self.is_empty else f"a {self.kind}"

    @property
    def place(self) -> str:
        """Return the line and column with which messages begin; "" in JSON."""
        return "" if self.line is None else at(self.line, self.column)


class Document:
    """A file as a document, with checks of its shape.

    Args: ``path``: JSON if its name ends in .json, else YAML. ``shape`` of the whole file, for messages.
    ``error``: class of the exceptions.
    """

    def __init__(self, path: Path, shape: str, error: type[DocumentError] = DocumentError) -> None:
        self.path = path
        self.shape = shape
        self.error = error

    def read(self, what: str) -> str:
        """Return the text of the file. Args: ``what``: its kind, for messages.

        Raises: DocumentError; OSError when it cannot be read.
        """
        try:
            with self.path.open(encoding="utf-8") as file:
                text = file.read(MAX_CHARACTERS + 1)
        except UnicodeDecodeError:
            raise self.error(self.path, "expected UTF-8 text, found other bytes; save the file as UTF-8") from None
        if len(text) > MAX_CHARACTERS:
            expected = f"expected {what}, of at most {MAX_CHARACTERS:,} characters, found more"
            raise self.error(self.path, expected)
        return text

    def parse(self, text: str, use: Callable[[Node], Any]) -> Any:
        """Return the result of ``use``, which must read the whole root before it returns. Raises: DocumentError."""
        try:
            if self.path.suffix.lower() == ".json":
                return use(_json_document(self, text))
            return _of_yaml(self, text, use)
        except RecursionError:
            raise self.error(self.path, TOO_DEEP) from None

    def wrong(self, node: Node, text: str) -> DocumentError:
        """Return the error for a node."""
        return self.error(self.path, text, node.line, node.column)

    def elements(self, node: Node, expected: str) -> Iterator[tuple[Node, str]]:
        """Yield each element of a list, with the start of messages about it: "" in YAML. Raises: DocumentError."""
        if node.kind != "list":
            raise self.wrong(node, expected)
        for number, element in enumerate(node.content(), 1):
            yield element, "" if element.line is not None else f"entry {number}: "

    def fields(self, node: Node, where: str, expected: str) -> dict[str, tuple[Node, Node]]:
        """Return a mapping by its keys, each with the nodes of the key and the value.

        Args: ``where``: start of messages; ``expected``: message if the node is not a mapping.
        Raises: the document's error, also for a key that is duplicate or not a string.
        """
        if node.kind != "mapping":
            raise self.wrong(node, expected)
        fields: dict[str, tuple[Node, Node]] = {}
        for key, value in node.content():
            if key.kind != "scalar" or not isinstance(key.content, str):
                raise self.wrong(key, f"{where}expected a string as key, got {key.shown}; quote it")
            if key.content in fields:
                raise self.wrong(key, f"{where}duplicate key {key.content}; keep one")
            fields[key.content] = key, value
        return fields


def at(line: int, column: int | None) -> str:
    """Return the place with which messages begin."""
    return f"line {line}, column {column}: "


def short(text: str) -> str:
    """Return the text for a message, cut after 40 characters."""
    return text if len(text) <= 40 else f"{text[:40]}..."


# ---------------------------------------------------------------- JSON


def _json_document(file: Document, text: str) -> Node:
    try:
        return _json_node(json.loads(text, object_pairs_hook=_Pairs))
    except json.JSONDecodeError as error:
        raise file.error(file.path, error.msg, error.lineno, error.colno) from None
    except ValueError:
        raise file.error(file.path, "expected numbers of at most 308 digits, found a longer one") from None


class _Pairs(list[tuple[str, Any]]):
    """A JSON object with all of its keys, including duplicates."""


def _json_node(value: Any) -> Node:
    if isinstance(value, _Pairs):
        pairs = [(Node("scalar", key), _json_node(inner)) for key, inner in value]
        return Node("mapping", lambda: pairs, is_empty=not pairs)
    if isinstance(value, list):
        elements = [_json_node(inner) for inner in value]
        return Node("list", lambda: elements, is_empty=not elements)
    return Node("scalar", value)


# ---------------------------------------------------------------- YAML


def _of_yaml(file: Document, text: str, use: Callable[[Node], Any]) -> Any:
    try:
        import importlib

        yaml: Any = importlib.import_module("yaml")
    except ImportError:
        raise file.error(
            file.path, "YAML needs PyYAML: pip install 'kbroker[yaml]' (a file named .json needs nothing)"
        ) from None
    try:
        loader = yaml.SafeLoader(text)
        try:
            root = loader.get_single_node()
            if root is None:
                raise file.error(file.path, f"expected {file.shape}, found nothing")
            return use(_YamlNodes(file, yaml, loader.construct_object).node(root))
        finally:
            loader.dispose()
    except yaml.reader.ReaderError as error:
        before = text[: error.position]
        line, column = before.count("\n") + 1, len(before) - before.rfind("\n")
        found = f"U+{ord(text[error.position]):04X}"
        raise file.error(file.path, f"expected printable characters, found {found}", line, column) from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = (None, None) if mark is None else (mark.line + 1, mark.column + 1)
        raise file.error(file.path, getattr(error, "problem", None) or str(error), *where) from None


class _YamlNodes:
    """Conversion of PyYAML's nodes to `Node`."""

    def __init__(self, file: Document, yaml: Any, construct: Callable[[Any], Any]) -> None:
        self._file = file
        self._yaml = yaml
        self._construct = construct

    def node(self, found: Any) -> Node:
        line, column = found.start_mark.line + 1, found.start_mark.column + 1
        kind = found.tag.rpartition(":")[2]
        if isinstance(found, self._yaml.ScalarNode):
            return Node("scalar", self._scalar(found, kind, line, column), line, column)
        is_list = isinstance(found, self._yaml.SequenceNode)
        if kind != ("seq" if is_list else "map"):
            text = f"expected a plain {'list' if is_list else 'mapping'}, got one of the type {found.tag}"
            raise self._file.error(self._file.path, text, line, column)
        if is_list:
            return Node("list", lambda: map(self.node, found.value), line, column, not found.value)
        return Node("mapping", lambda: self._pairs(found), line, column, not found.value)

    def _pairs(self, found: Any) -> Iterator[tuple[Node, Node]]:
        for key, value in found.value:
            yield self.node(key), self.node(value)

    def _scalar(self, found: Any, kind: str, line: int, column: int) -> Any:
        try:
            return self._construct(found)
        except (ValueError, AttributeError, KeyError):  # matches YAML's pattern of a date or number, but is invalid
            text = f"expected a valid {kind}, got {short(found.value)!r}; if it is a name, quote it"
            raise self._file.error(self._file.path, text, line, column) from None

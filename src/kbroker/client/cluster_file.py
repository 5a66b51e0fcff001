"""File of a cluster: its topics, ACLs, quotas and users, in YAML or JSON; errors report line and column."""

import json
import re
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from kbroker.client.document_file import Document, Node, short
from kbroker.client.quota_file import QuotaSection
from kbroker.client.quota_resolution import Values
from kbroker.common.quota_limits import json_number
from kbroker.common.quotas import QuotaEntity
from kbroker.common.security.acls import (
    Acl,
    Operation,
    PatternType,
    Permission,
    ResourceType,
    check_principal,
    java_host,
)
from kbroker.common.similar_names import ALMOST, did_you_mean

TOPICS, ACLS, QUOTAS, USERS = SECTIONS = ("topics", "acls", "quotas", "users")
SHAPE = f"a mapping with the sections {', '.join(SECTIONS)}, each a list"
TOPIC_SHAPE = "topics as {name: NAME, partitions: N, replication_factor: N, configs: {NAME: VALUE}}"
ACL_SHAPE = (
    "ACLs as {principal: User:NAME, permission: Allow or Deny, operation: NAME, resource: TYPE, name: NAME, "
    "pattern: Literal or Prefixed, host: ADDRESS}"
)
USER_SHAPE = "users as {user: NAME, mechanism: SCRAM-SHA-512 or SCRAM-SHA-256, iterations: N}"
MECHANISMS = ("SCRAM-SHA-512", "SCRAM-SHA-256")
PLAIN_TEXT = re.compile(r"[A-Za-z_/][A-Za-z0-9_./-]*(?: [A-Za-z0-9_./-]+)*")
NOT_TEXT = {"null", "true", "false", "yes", "no", "on", "off", "y", "n"}  # words that YAML 1.1 reads as other types
UNPRINTABLE = re.compile("[\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff\ud800-\udfff]")
LONGEST_LINE = 118

T = TypeVar("T")


class Topic(NamedTuple):
    """A topic; in a file, None and absent configs are left to the broker.

    ``replication_factor`` of a topic of a cluster: None if its partitions differ.
    """

    name: str
    partitions: int | None = None
    replication_factor: int | None = None
    configs: Mapping[str, str] = {}


class ClusterContent(NamedTuple):
    """Content of a cluster or of its file; None for a section that is left out.

    ``users``: iterations by user and mechanism, None if the file does not name them. ``places``: place in the file by
    section and name, for messages. ``unknown_acls``: number of further rules of the cluster, which a file cannot have.
    """

    topics: Mapping[str, Topic] | None = None
    acls: Collection[Acl] | None = None
    quotas: Mapping[QuotaEntity, Values] | None = None
    users: Mapping[tuple[str, str], int | None] | None = None
    places: Mapping[tuple[str, object], str] = {}
    unknown_acls: int = 0


def read_cluster_file(path: Path) -> ClusterContent:
    """Read the file of a cluster. Raises: DocumentError; OSError when it cannot be read."""
    document = Document(path, SHAPE)
    content: ClusterContent = document.parse(document.read("a file of a cluster"), _Sections(document).content)
    return content


class _Sections:
    """Validation of a document as the file of a cluster."""

    def __init__(self, document: Document) -> None:
        self._document = document
        self._wrong = document.wrong
        self._places: dict[tuple[str, object], str] = {}

    def content(self, root: Node) -> ClusterContent:
        fields = self._document.fields(root, "", f"expected {SHAPE}")
        for name, (key, _) in fields.items():
            if name not in SECTIONS:
                meant = did_you_mean(name, SECTIONS, ALMOST)
                raise self._wrong(key, f"expected {SHAPE}; found {short(repr(name))}{meant}")
        nodes = {name: node for name, (_, node) in fields.items()}
        quotas = QuotaSection(self._document).quotas(nodes[QUOTAS]) if QUOTAS in nodes else None
        return ClusterContent(
            self._unique(TOPICS, nodes, TOPIC_SHAPE, self._topic),
            self._unique(ACLS, nodes, ACL_SHAPE, self._acl),
            quotas,
            self._unique(USERS, nodes, USER_SHAPE, self._user),
            self._places,
        )

    def _unique(
        self, section: str, nodes: Mapping[str, Node], shape: str, read: "Callable[[_Entry], tuple[Any, T]]"
    ) -> dict[Any, T] | None:
        """Return the entries of a section by key; None if the file lacks the section. Raises: DocumentError."""
        if section not in nodes:
            return None
        found: dict[Any, T] = {}
        for node, where in self._document.elements(nodes[section], f"{section}: expected a list of {shape}"):
            entry = _Entry(self._document, node, f"{section}: {where}", shape)
            key, value = read(entry)
            if key in found:
                raise self._wrong(node, f"{section}: {where}duplicate entry; keep one")
            found[key] = value
            self._places[section, key] = f"{self._document.path}: {node.place or where}"
        return found

    def _topic(self, entry: "_Entry") -> tuple[str, Topic]:
        entry.check_fields("name partitions replication_factor configs", "name")
        name = entry.text("name")
        return name, Topic(name, entry.count("partitions"), entry.count("replication_factor"), entry.texts("configs"))

    def _acl(self, entry: "_Entry") -> tuple[Acl, None]:
        entry.check_fields(
            "principal permission operation resource name pattern host", "principal operation resource name"
        )
        principal = entry.text("principal")
        try:
            check_principal(principal)
        except ValueError as error:
            raise self._wrong(entry.node, f"{entry.where}{error}") from None
        acl = Acl(
            entry.word("resource", [kind for kind in ResourceType if kind > ResourceType.ANY]),
            entry.text("name"),
            entry.word("pattern", [PatternType.LITERAL, PatternType.PREFIXED], PatternType.LITERAL),
            principal,
            java_host(entry.text("host", "*")),
            entry.word("operation", [one for one in Operation if one > Operation.ANY]),
            entry.word("permission", [Permission.ALLOW, Permission.DENY], Permission.ALLOW),
        )
        return acl, None

    def _user(self, entry: "_Entry") -> tuple[tuple[str, str], int | None]:
        entry.check_fields("user mechanism iterations", "user")
        mechanism = entry.text("mechanism", MECHANISMS[0])
        if mechanism not in MECHANISMS:
            text = f"{entry.where}mechanism: expected {' or '.join(MECHANISMS)}, got {short(repr(mechanism))}"
            raise self._wrong(entry.node, text)
        return (entry.text("user"), mechanism), entry.count("iterations")


W = TypeVar("W", ResourceType, PatternType, Operation, Permission)


class _Entry:
    """One entry of a section, a mapping. Args: ``where``: start of messages."""

    def __init__(self, document: Document, node: Node, where: str, shape: str) -> None:
        self._document = document
        self._wrong = document.wrong
        self.node = node
        self.where = where
        self._expected = f"{where}expected {shape}"
        self._fields = document.fields(node, where, self._expected)

    def check_fields(self, allowed: str, needed: str) -> None:
        """Check the names of the fields. Raises: DocumentError."""
        for key, (named, _) in self._fields.items():
            if key not in allowed.split():
                meant = did_you_mean(key, allowed.split(), ALMOST)
                raise self._wrong(named, f"{self._expected}; found {short(repr(key))}{meant}")
        for key in needed.split():
            if key not in self._fields:
                raise self._wrong(self.node, f"{self._expected}; found no {key}")

    def text(self, key: str, default: str = "") -> str:
        """Return a field that is a non-empty string, or the default if it is absent. Raises: DocumentError."""
        if key not in self._fields:
            return default
        node = self._fields[key][1]
        if node.kind != "scalar" or not isinstance(node.content, str) or not node.content:
            raise self._wrong(node, f"{self.where}{key}: expected a string, got {node.shown}; quote it")
        return node.content

    def count(self, key: str) -> int | None:
        """Return a field that is a whole number from 1; None without the field. Raises: DocumentError."""
        if key not in self._fields:
            return None
        node = self._fields[key][1]
        value = node.content
        if node.kind != "scalar" or isinstance(value, bool) or not isinstance(value, int) or not 0 < value < 2**31:
            raise self._wrong(node, f"{self.where}{key}: expected a whole number from 1, got {node.shown}")
        return value

    def texts(self, key: str) -> dict[str, str]:
        """Return a field that is a mapping, its scalars as strings; {} without the field. Raises: DocumentError."""
        if key not in self._fields:
            return {}
        found = {}
        expected = f"{self.where}{key}: expected a mapping of NAME: VALUE, got {self._fields[key][1].shown}"
        for name, (_, node) in self._document.fields(self._fields[key][1], self.where, expected).items():
            value = node.content
            if node.kind != "scalar" or not isinstance(value, str | int | float):
                text = f"{self.where}{key}: {name}: expected a string or a number, got {node.shown}"
                raise self._wrong(node, text)
            found[name] = str(value).lower() if isinstance(value, bool) else str(value)
        return found

    def word(self, key: str, known: list[W], default: W | None = None) -> W:
        """Return the member that a field names, in any case, with or without underscores. Raises: DocumentError."""
        if key not in self._fields and default is not None:
            return default
        by_name = {one.title.lower(): one for one in known}
        given = self.text(key)
        found = by_name.get(given.replace("_", "").lower())
        if found is None:
            listed = ", ".join(one.title for one in known)
            text = f"{self.where}{key}: expected one of {listed}, got {short(repr(given))}"
            raise self._wrong(self._fields[key][1], text)
        return found


# ---------------------------------------------------------------- writing


def cluster_document(content: ClusterContent) -> dict[str, Any]:
    """Return the content as `read_cluster_file` reads it from JSON."""
    found: dict[str, Any] = {}
    if content.topics is not None:
        found[TOPICS] = [_without_none(topic._asdict()) for topic in content.topics.values()]
    if content.acls is not None:
        found[ACLS] = [_acl_fields(acl) for acl in content.acls]
    if content.quotas is not None:
        found[QUOTAS] = [
            {"entity": entity.names, "quotas": {key: json_number(value) for key, value in values.items()}}
            for entity, values in content.quotas.items()
        ]
    if content.users is not None:
        found[USERS] = [
            _without_none({"user": user, "mechanism": mechanism, "iterations": iterations})
            for (user, mechanism), iterations in content.users.items()
        ]
    return found


def _without_none(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in fields.items() if value is not None and value != {}}


def _acl_fields(acl: Acl) -> dict[str, str]:
    fields = {
        "principal": acl.principal,
        "permission": acl.permission.title,
        "operation": acl.operation.title,
        "resource": acl.resource_type.title,
        "name": acl.resource_name,
    }
    if acl.pattern_type != PatternType.LITERAL:
        fields["pattern"] = acl.pattern_type.title
    return fields if acl.host == "*" else {**fields, "host": acl.host}


def yaml_text(document: Mapping[str, list[dict[str, Any]]]) -> str:
    """Return a document of lists as YAML, without PyYAML."""
    lines = []
    for section, entries in document.items():
        lines.append(f"{section}:" if entries else f"{section}: []")
        for entry in entries:
            flow = flow_text(entry)
            if len(flow) + 4 <= LONGEST_LINE:
                lines.append(f"  - {flow}")
                continue
            lead = "  - "
            for key, value in entry.items():
                lines.append(f"{lead}{key}:" if isinstance(value, dict) else f"{lead}{key}: {flow_text(value)}")
                lead = "    "
                if isinstance(value, dict):
                    lines += [f"      {flow_text(name)}: {flow_text(inner)}" for name, inner in value.items()]
    return "".join(f"{line}\n" for line in lines)


def flow_text(value: Any) -> str:
    """Return a value as YAML in one line, which any parser of YAML reads back."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{flow_text(key)}: {flow_text(inner)}" for key, inner in value.items()) + "}"
    if isinstance(value, str):
        if PLAIN_TEXT.fullmatch(value) and value.lower() not in NOT_TEXT:
            return value
        quoted = json.dumps(value, ensure_ascii=False)
        return UNPRINTABLE.sub(lambda found: f"\\u{ord(found[0]):04x}", quoted)
    return json.dumps(value)

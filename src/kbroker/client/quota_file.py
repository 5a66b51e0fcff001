"""File of quotas: entities with their limits, in YAML or JSON; errors report line and column."""

import re
from pathlib import Path

from kbroker.client.document_file import Document, DocumentError, Node, short
from kbroker.common.quota_limits import check_key, parse_limit
from kbroker.common.quotas import CLIENT_KEYS, ENTITY_TYPES, IP_KEYS, QuotaEntity, check_name
from kbroker.common.similar_names import ALMOST, did_you_mean

KEYS = sorted({*CLIENT_KEYS, *IP_KEYS})
SHAPE = "a list of {entity: {user: NAME, client-id: NAME, or ip: ADDRESS}, quotas: {KEY: NUMBER}}; null is the default"
#: Fields of an entry; `brokers` is printed by `kbroker quotas list --json`, and ignored here.
NEEDED, ALLOWED = {"entity", "quotas"}, {"entity", "quotas", "brokers"}


class DesiredQuotas(dict[QuotaEntity, dict[str, float]]):
    """Quotas by entity, as a file lists them. ``path`` of the file."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = path
        self._places: dict[tuple[QuotaEntity, str], str] = {}

    def put_place(self, entity: QuotaEntity, key: str, place: str) -> None:
        """Record the place of a quota in the file; an empty key stands for the entity."""
        self._places[entity, key] = place

    def place_of(self, entity: QuotaEntity, text: str) -> str:
        """Return the file and place of the entity's quota that the text names first, else of the entity.

        Empty for an entity that is not in the file.
        """
        if entity not in self:
            return ""
        found = {key: re.search(rf"(?<![\w.]){re.escape(key)}(?![\w.])", text) for key in self[entity]}
        named = [(match.start(), key) for key, match in found.items() if match is not None]
        return f"{self.path}: {self._places[entity, min(named)[1] if named else '']}"


class QuotaFileError(DocumentError):
    """An invalid file of quotas: a `DocumentError`, whose message is one line."""


def read_quota_file(path: Path | str) -> DesiredQuotas:
    """Read quotas by entity from a YAML file, or from JSON if its name ends in .json.

    Limits may have units: 1 MiB/s, 50 %.
    Raises: QuotaFileError; OSError when it cannot be read.
    """
    path = Path(path)
    return parse_quotas(Document(path, SHAPE, QuotaFileError).read("a file of quotas"), path)


def parse_quotas(text: str, path: Path) -> DesiredQuotas:
    """Parse the text of a file of quotas; ``path`` determines the format, and is part of the messages.

    Raises: QuotaFileError.
    """
    document = Document(path, SHAPE, QuotaFileError)
    quotas: DesiredQuotas = document.parse(text, QuotaSection(document).quotas)
    return quotas


class QuotaSection:
    """Validation of a list of quotas, which is a file or a section of one."""

    def __init__(self, document: Document) -> None:
        self._document = document
        self._wrong = document.wrong

    def quotas(self, node: Node) -> DesiredQuotas:
        """Return the quotas by entity. Raises: DocumentError."""
        quotas = DesiredQuotas(self._document.path)
        for entry, where in self._document.elements(node, f"expected {SHAPE}"):
            expected = f"{where}expected entity and quotas, of {SHAPE}"
            fields = self._document.fields(entry, where, expected)
            for key, (named, _) in fields.items():
                if key not in ALLOWED:
                    raise self._wrong(named, f"{expected}; found {key!r}{did_you_mean(key, sorted(NEEDED), ALMOST)}")
            if not fields.keys() >= NEEDED:
                raise self._wrong(entry, expected)
            entity = self._entity(fields["entity"][1], where)
            if entity in quotas:
                raise self._wrong(entry, f"{where}duplicate entry for {entity}; keep one")
            listed, of_entity = fields["quotas"][1], f"{where}{entity}: "
            expected = f"{of_entity}expected quotas as KEY: NUMBER ({{}} removes all), got {listed.shown}"
            limits = self._document.fields(listed, of_entity, expected)
            quotas[entity] = {key: self._limit(*at, key, of_entity) for key, at in limits.items()}
            for key, (named, _) in {"": (fields["entity"][1], None), **limits}.items():
                quotas.put_place(entity, key, named.place or where)
        return quotas

    def _entity(self, node: Node, where: str) -> QuotaEntity:
        expected = f"{where}expected an entity of a user, a client-id, both, or an ip, got {node.shown}"
        names: dict[str, str | None] = {}
        for kind, (key, name) in self._document.fields(node, where, expected).items():
            if kind not in ENTITY_TYPES:
                meant = did_you_mean(kind, ENTITY_TYPES, ALMOST)
                raise self._wrong(
                    key, f"{where}expected an entity type ({', '.join(ENTITY_TYPES)}), got {short(repr(kind))}{meant}"
                )
            if name.kind != "scalar" or not (name.content is None or isinstance(name.content, str)):
                raise self._wrong(name, f"{where}expected a string as {kind}, got {name.shown}; quote it")
            try:
                check_name(kind, name.content)
            except ValueError as error:
                raise self._wrong(name, f"{where}{error}") from None
            names[kind] = name.content
        if not names:
            raise self._wrong(node, expected)
        return QuotaEntity.of(names)

    def _limit(self, named: Node, node: Node, key: str, where: str) -> float:
        try:
            check_key(key)
        except ValueError as error:
            raise self._wrong(named, f"{where}{error}") from None
        value = node.content
        if node.kind == "scalar" and isinstance(value, str):
            try:
                value = parse_limit(key, value)
            except ValueError as error:
                raise self._wrong(node, f"{where}{error}") from None
        if node.kind != "scalar" or isinstance(value, bool) or not isinstance(value, int | float) or value != value:
            raise self._wrong(node, f"{where}{key}: expected a number, got {node.shown}")
        try:
            return float(value)
        except OverflowError:
            text = f"{where}{key}: expected a number below 1e308 as quota, got a larger one"
            raise self._wrong(node, text) from None

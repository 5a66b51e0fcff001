"""Client of a Schema Registry: Confluent's API, as Karapace, Redpanda and others serve it, or Apicurio's own.

Decoding needs only a few GETs, for which the standard library is enough: the registries' own clients limit neither the
size nor the time of a response, and require a dozen packages.
"""

from __future__ import annotations

import base64
import copy
import json
import math
import re
import ssl
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote, unquote, urlsplit

from kbroker.client.http_get import HttpFailure, HttpTimeout, Response, http_get
from kbroker.common.errors import UserError

#: Kinds of ids: Confluent's number, its GUID, and Apicurio's two.
ID, GUID, GLOBAL_ID, CONTENT_ID = "id", "guid", "globalId", "contentId"
AVRO, PROTOBUF, JSON_SCHEMA = "avro", "protobuf", "json-schema"
TIMEOUT_S = 5.0  # time limit of each request
MAX_BYTES = 4 << 20  # maximum size of a response
MAX_SCHEMAS = 1000  # maximum number of kept schemas
MAX_REFERENCES = 100  # maximum number for a schema, including indirect references
FAILURE_KEPT_S = 10.0  # time without repetition of a failed look-up, and without requests to a silent registry
SILENCE_S = 1.0  # a shorter wait without a response does not count as a failure of the registry
_KINDS = {"AVRO": AVRO, "PROTOBUF": PROTOBUF, "JSON": JSON_SCHEMA}
_APICURIO = re.compile(r"(.*/apis)/(?:registry/v([23])|ccompat/v[0-9]+)\Z")
_JSON_SCHEMA_WORDS = ("$schema", "$ref", "$id", "$defs", "properties", "oneOf", "anyOf", "allOf")


class RegistryError(UserError):
    """Failure of a registry: unreachable, a refused request, or a missing schema; the message is one line."""

    def __init__(self, message: str, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status


class SchemaId(NamedTuple):
    """The id of a schema. ``kind``: ID, GUID, GLOBAL_ID or CONTENT_ID."""

    kind: str
    text: str

    def __str__(self) -> str:
        return f"{self.kind} {self.text}"


_ANY = SchemaId("", "")  # key of a failure that concerns every id: the registry does not respond


class Schema(NamedTuple):
    """A schema. ``kind``: AVRO, PROTOBUF or JSON_SCHEMA; ``references``: name and text, each before its users."""

    kind: str
    text: str
    references: tuple[tuple[str, str], ...] = ()


class SchemaVersion(NamedTuple):
    """A version of a subject."""

    subject: str
    version: int
    id: int
    schema: Schema


class SchemaRegistry:
    """Client of a Schema Registry. It keeps the schemas that it has read: the schema of an id never changes.

    Args:
        url: ``http(s)://[USER:PASSWORD@]HOST[:PORT][/PATH]``. A path that ends with ``/apis/registry/v2`` or ``v3`` is
            Apicurio's own API, any other is Confluent's.
        credentials: USER:PASSWORD for basic authentication.
        ca_file: certificates of the authorities that may sign the registry's certificate.
        timeout_s: for each request.
    Raises: ValueError for a malformed URL, OSError for an unreadable ``ca_file``.
    Threads: any.
    """

    def __init__(
        self,
        url: str,
        credentials: str | None = None,
        ca_file: str | Path | None = None,
        *,
        timeout_s: float = TIMEOUT_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        parts = urlsplit(url if "://" in url else f"http://{url}")
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
            raise ValueError(f"expected http(s)://HOST:PORT, got {_without_password(url)!r}")
        if parts.username is not None and credentials is None:
            credentials = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
        if credentials is not None and ":" not in credentials:
            raise ValueError("expected USER:PASSWORD for the registry")
        self._scheme, self._host, self._port = parts.scheme, parts.hostname, parts.port
        self._path = parts.path.rstrip("/")
        address = parts.netloc.rpartition("@")[2]
        self.url = f"{parts.scheme}://{address}{self._path}"
        self._headers = {"Accept": "application/vnd.schemaregistry.v1+json, application/json, */*"}
        if credentials is not None:
            self._headers["Authorization"] = f"Basic {base64.b64encode(credentials.encode()).decode()}"
        secure = parts.scheme == "https"
        self._context = ssl.create_default_context(cafile=None if ca_file is None else str(ca_file)) if secure else None
        self._timeout_s, self._clock = timeout_s, clock
        own = _APICURIO.fullmatch(self._path)
        self._own_version = int(own[2]) if own and own[2] else 0  # version of Apicurio's API; 0 for Confluent's
        self._own_path = f"{own[1]}/registry/v{own[2] or 2}" if own else None
        self._lock = threading.Lock()
        self._schemas: OrderedDict[SchemaId, Schema] = OrderedDict()
        self._failures: OrderedDict[SchemaId, tuple[float, RegistryError]] = OrderedDict()
        self._deadline_s = math.inf

    def within(self, seconds: float) -> SchemaRegistry:
        """Return a copy that shares the cached schemas and waits at most `seconds` in total for responses."""
        found = copy.copy(self)
        found._deadline_s = self._clock() + seconds
        return found

    # ---- schemas by id

    def schema(self, schema_id: SchemaId) -> Schema:
        """Return the schema of an id with its references. Raises: RegistryError, the same one for FAILURE_KEPT_S."""
        with self._lock:
            found = self._schemas.get(schema_id)
            if found is not None:
                self._schemas.move_to_end(schema_id)
                return found
            self._raise_kept_failure(schema_id)
        try:
            found = self._fetch(schema_id)
        except RegistryError as error:
            if self._clock() < self._deadline_s:
                self._keep_failure(schema_id, error)
            raise
        with self._lock:
            _keep(self._schemas, schema_id, found)
        return found

    def _raise_kept_failure(self, schema_id: SchemaId = _ANY) -> None:
        """Raise the RegistryError that is kept for an id or for all ids, if there is one. The caller holds the lock."""
        for one in (schema_id, _ANY):
            until_s, failure = self._failures.get(one, (0.0, None))
            if failure is not None and self._clock() < until_s:
                raise RegistryError(str(failure), failure.status)

    def _keep_failure(self, schema_id: SchemaId, error: RegistryError) -> None:
        with self._lock:
            _keep(self._failures, schema_id, (self._clock() + FAILURE_KEPT_S, error))

    def _fetch(self, schema_id: SchemaId) -> Schema:
        kind, text = schema_id
        if kind == GUID or (kind == ID and not self._own_version):
            path = f"/schemas/guids/{quote(text)}" if kind == GUID else f"/schemas/ids/{quote(text)}"
            return self._confluent_schema(self._json(self._path + path))
        if kind == ID:  # Apicurio's serializers write global ids in version 2, content ids in version 3
            kind = GLOBAL_ID if self._own_version == 2 else CONTENT_ID
        if self._own_path is None:  # another registry, with ids of Apicurio's serializers
            return self._confluent_schema(self._json(f"{self._path}/schemas/ids/{quote(text)}"))
        return self._own_schema(f"{self._own_path}/ids/{kind}s/{quote(text)}")

    def _confluent_schema(self, body: Any) -> Schema:
        kind = str(body.get("schemaType") or "AVRO")
        if kind not in _KINDS or not isinstance(body.get("schema"), str):
            raise RegistryError(f"{self.url}: expected a schema of {', '.join(_KINDS)}, got {kind[:40]!r}")
        return Schema(_KINDS[kind], body["schema"], self._references(body.get("references"), self._confluent_reference))

    def _confluent_reference(self, one: Mapping[str, Any]) -> tuple[Any, str]:
        where = f"/subjects/{_quoted(one.get('subject'))}/versions/{_quoted(one.get('version'))}"
        body = self._json(self._path + where)
        return body.get("references"), str(body.get("schema"))

    def _own_schema(self, path: str) -> Schema:
        response = self._get(path)
        text = response.body.decode("utf-8", "replace")
        references = self._references(self._json(f"{path}/references", list), self._own_reference)
        kind = _KINDS.get(response.headers.get("x-registry-artifacttype", "")) or _kind_of(text)
        return Schema(kind, text, references)

    def _own_reference(self, one: Mapping[str, Any]) -> tuple[Any, str]:
        group, artifact, version = (
            _quoted(one.get(field) or default)
            for field, default in (("groupId", "default"), ("artifactId", ""), ("version", "1"))
        )
        base = f"{self._own_path}/groups/{group}/artifacts/{artifact}/versions/{version}"
        content = base if self._own_version != 3 else f"{base}/content"
        return self._json(f"{base}/references", list), self._get(content).body.decode("utf-8", "replace")

    def _references(
        self, listed: Any, read: Callable[[Mapping[str, Any]], tuple[Any, str]]
    ) -> tuple[tuple[str, str], ...]:
        """Return name and text of the references of a schema, each before its users.

        Args: ``listed``: references in the registry's response; ``read`` returns the references and the text of one.
        """
        found: dict[str, str] = {}
        visited: set[str] = set()

        def add(references: Any) -> None:
            if not isinstance(references, list) or not all(isinstance(one, dict) for one in references):
                raise RegistryError(f"{self.url}: expected a list of objects as references, got something else")
            for one in references:
                name = str(one.get("name"))
                if name in visited:
                    continue
                visited.add(name)
                if len(visited) > MAX_REFERENCES:
                    raise RegistryError(f"{self.url}: the schema has more than {MAX_REFERENCES} references")
                further, text = read(one)
                add(further or [])
                found[name] = text

        add(listed or [])
        return tuple(found.items())

    # ---- subjects, by Confluent's API

    def subjects(self) -> list[str]:
        """Return the names of all subjects, sorted. Raises: RegistryError."""
        return sorted(map(str, self._json(f"{self._confluent_path}/subjects", list)))

    def versions(self, subject: str) -> list[int]:
        """Return the versions of a subject. Raises: RegistryError."""
        found: list[int] = self._json(f"{self._confluent_path}/subjects/{_quoted(subject)}/versions", list)
        if not all(type(version) is int for version in found):
            raise RegistryError(f"{self.url}: expected the versions of a subject, got another document")
        return found

    def version(self, subject: str, version: int | None = None) -> SchemaVersion:
        """Return a version of a subject, the latest one by default.

        Raises: RegistryError, the same one for FAILURE_KEPT_S after the registry did not respond.
        """
        with self._lock:
            self._raise_kept_failure()
        wanted = "latest" if version is None else str(version)
        body = self._json(f"{self._confluent_path}/subjects/{_quoted(subject)}/versions/{wanted}")
        try:
            number, found = int(body["version"]), int(body["id"])
            found.to_bytes(4, "big")
        except (KeyError, TypeError, ValueError, OverflowError):
            raise RegistryError(f"{self.url}: expected a version of a subject, got another document") from None
        return SchemaVersion(subject, number, found, self._confluent_schema(body))

    @property
    def _confluent_path(self) -> str:
        """The path of Confluent's API, which Apicurio serves beside its own."""
        return self._path if not self._own_version else self._path.rpartition("/registry/")[0] + "/ccompat/v7"

    # ---- HTTP

    def _json(self, path: str, kind: type = dict) -> Any:
        body = self._get(path).body
        try:
            found = json.loads(body)
        except (ValueError, RecursionError):
            found = None
        if not isinstance(found, kind):
            text = f"{self.url}: expected a JSON {kind.__name__}, got something else: is it a registry?"
            raise RegistryError(text, 200)
        return found

    def _get(self, path: str) -> Response:
        timeout_s = min(self._timeout_s, self._deadline_s - self._clock())
        if timeout_s <= 0:
            raise RegistryError(f"{self.url}: the time for its responses is over")
        try:
            response = http_get(
                *(self._scheme, self._host, self._port, path, self._headers),
                timeout_s=timeout_s,
                max_bytes=MAX_BYTES,
                context=self._context,
                clock=self._clock,
            )
        except HttpFailure as failure:
            error = RegistryError(f"{self.url}: {failure}")
            if isinstance(failure, HttpTimeout) and timeout_s >= SILENCE_S:
                self._keep_failure(_ANY, error)
            raise error from None
        if response.status != 200:
            raise RegistryError(f"{self.url}: {_reason(response)}", response.status)
        return response


def _quoted(name: object) -> str:
    """Return a name as a part of a path; a name that is not Unicode text becomes one that no registry has."""
    return quote(str(name), safe="", errors="backslashreplace")


def _keep(kept: OrderedDict[SchemaId, Any], key: SchemaId, value: Any) -> None:
    kept[key] = value
    while len(kept) > MAX_SCHEMAS:
        kept.popitem(last=False)


def _reason(response: Response) -> str:
    try:
        text = str(json.loads(response.body)["message"])
    except (ValueError, KeyError, TypeError, RecursionError):
        text = ""
    sentence = "".join(c for c in " ".join(text.split()) if c.isprintable())[:300]
    return f"status {response.status}{f': {sentence}' if sentence else ''}"


def _kind_of(text: str) -> str:
    """Return the kind of a schema by its text: Apicurio reports none with the content of an id."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return PROTOBUF
    if isinstance(found, bool) or (isinstance(found, dict) and any(word in found for word in _JSON_SCHEMA_WORDS)):
        return JSON_SCHEMA
    is_object = isinstance(found, dict) and found.get("type") in ("object", "number", "integer", None)
    return JSON_SCHEMA if is_object else AVRO


def _without_password(url: str) -> str:
    return re.sub(r"//[^/]*@", "//", url)

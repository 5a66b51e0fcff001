"""Protobuf as JSON, by the text or the descriptor of a .proto file.

protoc from grpcio-tools compiles the text: it is Protobuf's own compiler, with every rule of imports, options and
editions, in its own process for a limited time. The runtime of Protobuf decodes; it limits the depth of messages.
Any producer can write thousands of messages in a few bytes, each with all fields of its type: their JSON is limited.
"""

from __future__ import annotations

import base64
import importlib
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from kbroker.decoders.decoded import (
    Decoded,
    MissingPackageError,
    UndecodableError,
    UnencodableError,
    check_schema_characters,
)

FILE = "schema.proto"
COMPILE_TIMEOUT_S = 20.0
_MAX_ERROR = 300  # characters of protoc's message
_MAX_IMPORTS = 50  # levels of nested imports
MAX_FIELDS = 500_000  # maximum of a record, absent fields included; beyond it, the JSON omits absent fields
MAX_PARSED_FIELDS = 10_000_000  # maximum of a record, as above: the runtime reserves memory for all of them
_PROTOC = "import sys; from grpc_tools import protoc; sys.exit(protoc.main(sys.argv))"


class UnfinishedError(UndecodableError):
    """Failure to start or to end protoc in time; a later attempt may succeed."""


class ProtobufSchema:
    """The messages of a .proto file.

    Args: ``text``: the file, or its descriptor in base64; ``imports``: by path, the files that it imports.
    Raises: UndecodableError for a text that protoc refuses; UnfinishedError; MissingPackageError.
    Threads: any.
    """

    def __init__(self, text: str, imports: Mapping[str, str] | None = None) -> None:
        try:
            import grpc_tools
            from google.protobuf import descriptor_pb2, descriptor_pool
        except ModuleNotFoundError as error:
            raise MissingPackageError("Protobuf", error.name) from None
        texts, files, main = {}, {}, FILE
        while imports and main in imports:
            main = f"_{main}"
        for path, content in {**(imports or {}), main: text}.items():
            one = _serialized(content)
            if one is None:
                texts[path] = content
            else:
                one.name = path
                files[path] = one
        if texts:
            try:
                compiled = _compiled(texts, Path(grpc_tools.__path__[0]) / "_proto")
            except OSError as error:
                need = "expected memory for its process, and room in a temporary folder (TMPDIR)"
                raise UnfinishedError(f"protoc cannot run: {error}; {need}") from None
            files.update((one.name, one) for one in descriptor_pb2.FileDescriptorSet.FromString(compiled).file)
        self._widest = max(_widest(one.message_type) for one in files.values())
        self._pool = descriptor_pool.DescriptorPool()
        _add(self._pool, main, files, [])
        self._file = self._pool.FindFileByName(main)
        self._messages = list(self._file.message_types_by_name.values())

    def named(self, name: str) -> bool:
        """Return whether the file has a message of that name, with or without its package."""
        return self._message(name) is not None

    def decode(self, data: bytes, *, indexes: Sequence[int] = (0,), name: str | None = None) -> Decoded:
        """Return a message as JSON, in the form of Protobuf, with the names of the .proto file.

        If there are more than MAX_FIELDS fields, the JSON has only those that the bytes contain.
        Args: ``indexes``: position of the message's type in the file, then in its parents; ``name``: its name instead.
        Raises: UndecodableError.
        """
        from google.protobuf import json_format, message

        kind = self._at(indexes) if name is None else self._message(name)
        if kind is None:
            raise UndecodableError(f"the schema has no message {name!r}")
        try:
            found = self._parsed(kind, data)
            text = json_format.MessageToJson(
                found,
                preserving_proto_field_name=True,
                always_print_fields_with_no_presence=self._field_count(found) <= MAX_FIELDS,
                indent=None,
                ensure_ascii=False,
                descriptor_pool=self._pool,
            )
        except (message.DecodeError, json_format.Error, TypeError, ValueError, RecursionError) as error:
            if isinstance(error, UndecodableError):
                raise
            raise UndecodableError(f"not a message {kind.full_name}: {error}") from None
        return Decoded("protobuf", text, is_json=True, schema=kind.full_name)

    def encode(self, text: str) -> bytes:
        """Return the bytes of the file's first message from JSON. Raises: UnencodableError."""
        from google.protobuf import json_format, message, message_factory

        if not self._messages:
            raise UnencodableError("the schema has no message")
        found = message_factory.GetMessageClass(self._messages[0])()
        try:
            json_format.Parse(text, found, descriptor_pool=self._pool)
            data: bytes = found.SerializeToString()
        except (json_format.Error, message.EncodeError, TypeError, ValueError, RecursionError) as error:
            reason = " ".join(str(error).split())[:_MAX_ERROR]
            raise UnencodableError(f"not a message {self._messages[0].full_name}: {reason}") from None
        return data

    def _parsed(self, kind: Any, data: bytes) -> Any:
        """Return a message of a type. Raises: UndecodableError beyond MAX_PARSED_FIELDS; DecodeError of Protobuf."""
        from google.protobuf import message_factory

        if len(data) // 2 * self._widest > MAX_PARSED_FIELDS:  # two bytes are the shortest message in another one
            _check_parsed_fields(kind, data)
        return message_factory.GetMessageClass(kind).FromString(data)

    def _field_count(self, found: Any) -> int:
        """Return the number of fields in all messages of a message, absent ones included.

        Raises: UndecodableError for too many characters of names.
        """
        from google.protobuf import message

        fields, characters, left = 0, 0, [found]
        while left:
            one = left.pop()
            fields += len(one.DESCRIPTOR.fields)
            for field, value in one.ListFields():
                characters += len(field.name)
                kind = field
                if isinstance(value, message.Message | bool | int | float | str | bytes):
                    values = [value]
                elif field.message_type is not None and field.message_type.GetOptions().map_entry:
                    kind, values = field.message_type.fields_by_name["value"], value.values()
                else:
                    values = value
                if kind.message_type is not None:
                    left += values
                elif kind.enum_type is not None:
                    symbols = kind.enum_type.values_by_number
                    for number in values:
                        characters += len(symbols[number].name) if number in symbols else 0
                        check_schema_characters(characters)
                check_schema_characters(characters)
            if one.DESCRIPTOR.full_name == "google.protobuf.Any":
                kind = self._message(one.type_url.rpartition("/")[2])
                if kind is not None:
                    left.append(self._parsed(kind, one.value))
        return fields

    def _at(self, indexes: Sequence[int]) -> Any:
        kinds, found = self._messages, None
        for index in indexes or (0,):
            if not 0 <= index < len(kinds):
                raise UndecodableError(f"the schema has no message at {list(indexes)}")
            found = kinds[index]
            kinds = found.nested_types
        return found

    def _message(self, name: str) -> Any:
        package = self._file.package
        for full in (name, f"{package}.{name}" if package else name):
            try:
                return self._pool.FindMessageTypeByName(full)
            except KeyError:
                continue
        return None


def _serialized(text: str) -> Any:
    """Return the file descriptor in base64 text, as Confluent's Python serializer registers it; None for other text."""
    from google.protobuf import descriptor_pb2, message

    try:
        return descriptor_pb2.FileDescriptorProto.FromString(base64.b64decode(text, validate=True))
    except (ValueError, message.DecodeError):
        return None


def _widest(messages: Iterable[Any]) -> int:
    """Return the maximum number of fields of one message type, among these and the types within them."""
    return max((max(len(one.field), _widest(one.nested_type)) for one in messages), default=0)


def _check_parsed_fields(kind: Any, data: bytes) -> None:
    """Check the number of fields of a message and of all messages in it. Raises: UndecodableError; DecodeError."""
    from google.protobuf.empty_pb2 import Empty
    from google.protobuf.unknown_fields import UnknownFieldSet

    fields, left = 0, [(kind, data)]
    while left:
        kind, data = left.pop()
        # the content of a group is already a set of fields
        for one in UnknownFieldSet(Empty.FromString(data)) if isinstance(data, bytes) else data:
            field = kind.fields_by_number.get(one.field_number)
            if field is not None and field.message_type is not None and not isinstance(one.data, int):
                left.append((field.message_type, one.data))
                fields += len(field.message_type.fields)
                if fields > MAX_PARSED_FIELDS:
                    raise UndecodableError(
                        f"more than {MAX_PARSED_FIELDS} fields, absent ones of its messages included"
                    )


def _add(pool: Any, path: str, files: Mapping[str, Any], parents: Sequence[str]) -> None:
    """Add a file after those that it imports. Raises: UndecodableError."""
    if len(parents) > _MAX_IMPORTS or path in parents:
        raise UndecodableError(f"imports of {path!r} are nested too deep, or in a circle")
    one = files.get(path) or _well_known(path)
    if one is None:
        raise UndecodableError(f"the schema imports {path!r}, which is not among its references")
    for imported in one.dependency:
        try:
            pool.FindFileByName(imported)
        except KeyError:
            _add(pool, imported, files, [*parents, path])
    try:
        pool.Add(one)
    except TypeError as error:  # duplicate or missing names
        raise UndecodableError(f"not a Protobuf schema: {' '.join(str(error).split())[:_MAX_ERROR]}") from None


def _well_known(path: str) -> Any:
    """Return the descriptor of one of Protobuf's own files; None for others."""
    from google.protobuf import descriptor_pb2

    name = re.fullmatch(r"google/protobuf/([a-z_]+)\.proto", path)
    try:
        module = None if name is None else importlib.import_module(f"google.protobuf.{name[1]}_pb2")
    except ModuleNotFoundError:
        module = None
    if module is None:
        return None
    found = descriptor_pb2.FileDescriptorProto()
    module.DESCRIPTOR.CopyToProto(found)
    return found


def _compiled(texts: Mapping[str, str], included: Path) -> bytes:
    """Return an encoded FileDescriptorSet of the files and their imports. Args: ``texts``: contents by path.

    Raises: UndecodableError, OSError.
    """
    with tempfile.TemporaryDirectory(prefix="kbroker-proto-") as name:
        folder = Path(name)
        for path, content in texts.items():
            if path.startswith("/") or ".." in PurePosixPath(path).parts or "\0" in path:
                raise UndecodableError(f"expected the import of a relative path, got {path!r}")
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_text(content, encoding="utf-8")
        out = folder / ".compiled"
        command = [sys.executable, "-c", _PROTOC, f"-I{folder}", f"-I{included}"]
        command += [f"--descriptor_set_out={out}", "--include_imports"]
        command += [f"{folder}/{path}" for path in texts]  # a path alone may be an option, or @FILE with options
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, errors="replace", timeout=COMPILE_TIMEOUT_S, check=False
            )
        except subprocess.TimeoutExpired:
            raise UnfinishedError(f"protoc did not end within {COMPILE_TIMEOUT_S:g} s") from None
        if done.returncode != 0 or not out.exists():
            reason = " ".join(done.stderr.replace(f"{folder}/", "").split())
            raise UndecodableError(f"protoc refuses the schema: {reason[:_MAX_ERROR]}")
        return out.read_bytes()

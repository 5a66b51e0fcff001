"""Options that choose decoders and filters of records, and the objects that they describe."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from kbroker.cli.options import FILE, F, decorators

if TYPE_CHECKING:
    from kbroker.client.schema_registry import SchemaRegistry
    from kbroker.decoders.decoders import Decoders
    from kbroker.decoders.expression import Expression

#: Names of decoders, for --help; a test compares them with those of kbroker.decoders, which is imported when needed.
DECODERS = (
    *("auto", "json", "text", "hex", "boolean", "int16", "int32", "int64", "float", "double", "uuid", "msgpack"),
    *("avro", "protobuf", "json-schema", "registry", "kafka"),
)

#: Names of encoders, for --help; a test compares them with those of kbroker.decoders.encoders.
ENCODERS = (
    *("text", "json", "hex", "base64", "boolean", "int16", "int32", "int64", "float", "double", "uuid", "msgpack"),
    *("avro", "protobuf", "json-schema", "registry"),
)

#: Encoders that need a Schema Registry.
BY_SCHEMA = frozenset(ENCODERS[-4:])


def _gathered(name: str, make: Callable[..., object], *options: str) -> Callable[[F], F]:
    """Return a decorator that passes the values of some options as one argument of the command."""

    def of(command: F) -> Any:
        @functools.wraps(command)
        def call(**given: Any) -> Any:
            return command(**{name: make(*(given.pop(one) for one in options)), **given})

        return call

    return of


class RegistryOptions(NamedTuple):
    """Values of `registry_options`."""

    url: str | None
    credentials: str | None
    ca_file: Path | None

    def client(self) -> SchemaRegistry | None:
        """Return the registry, None without a URL. Raises: BadParameter."""
        if not self.url:
            return None
        from kbroker.client.schema_registry import SchemaRegistry

        try:
            return SchemaRegistry(self.url, self.credentials or None, self.ca_file)
        except (ValueError, OSError) as error:
            raise click.BadParameter(str(error), param_hint="--registry") from None

    def needed(self) -> SchemaRegistry:
        """Return the registry. Raises: UsageError without a URL, BadParameter."""
        found = self.client()
        if found is None:
            raise click.UsageError("expected --registry URL or the variable KBROKER_REGISTRY")
        return found


class DecodeOptions(NamedTuple):
    """Values of `decode_options`."""

    key: str | None
    value: str | None
    registry: RegistryOptions

    def decoders(self, *, always: bool = False) -> Decoders | None:
        """Return the decoders; None if records are printed as they are.

        Args: ``always``: whether something else needs decoded records. Raises: BadParameter.
        """
        registry = self.registry.client()
        if not (self.key or self.value or registry or always):
            return None
        from kbroker.decoders.decoders import Decoders

        try:
            return Decoders(self.key or "auto", self.value or "auto", registry)
        except ValueError as error:
            raise click.BadParameter(f"{error}: give --registry URL", param_hint="--decode") from None


def registry_options(command: F) -> F:
    """Add `--registry`, `--registry-auth` and `--registry-ca`, which the command gets as `registry`."""
    return decorators(
        click.option(
            "--registry",
            "registry_url",
            envvar="KBROKER_REGISTRY",
            show_envvar=True,
            metavar="URL",
            help="Schema Registry: Confluent's API, or Apicurio's if the path ends with /apis/registry/v2 or v3.",
        ),
        click.option(
            "--registry-auth",
            envvar="KBROKER_REGISTRY_AUTH",
            show_envvar=True,
            metavar="USER:PASSWORD",
            help="Basic authentication. Other users of this machine can see options: prefer the variable.",
        ),
        click.option(
            "--registry-ca",
            envvar="KBROKER_REGISTRY_CA",
            show_envvar=True,
            type=FILE,
            metavar="FILE",
            help="Certificates (PEM) of the authorities that may sign the registry's.",
        ),
        _gathered("registry", RegistryOptions, "registry_url", "registry_auth", "registry_ca"),
    )(command)


def decode_options(default: str) -> Callable[[F], F]:
    """Return a decorator that adds `--decode`, `--decode-key` and `registry_options`; the command gets `decoding`.

    Args: ``default``: effect of a command line without `--decode`, for the help.
    """
    return decorators(
        click.option(
            "--decode",
            "value_decoder",
            type=click.Choice(DECODERS),
            metavar="FORMAT",
            help=f"Decode values: {', '.join(DECODERS[:-1])} (the last four by the schema that the bytes name), kafka "
            f"(records of Kafka's own topics).  [default: {default}]",
        ),
        click.option("--decode-key", "key_decoder", type=click.Choice(DECODERS), metavar="FORMAT", help="Decode keys."),
        registry_options,
        _gathered("decoding", DecodeOptions, "key_decoder", "value_decoder", "registry"),
    )


def expression_of(text: str | None) -> Expression | None:
    """Return the filter of `--filter`, None without it. Raises: BadParameter, MissingPackageError."""
    if text is None:
        return None
    from kbroker.decoders.expression import Expression, ExpressionError

    try:
        return Expression(text)
    except ExpressionError as error:
        raise click.BadParameter(str(error), param_hint="--filter") from None


def pattern_of(text: str, option: str) -> re.Pattern[str]:
    """Return a regular expression. Raises: BadParameter."""
    try:
        return re.compile(text)
    except (re.error, RecursionError, OverflowError) as error:
        raise click.BadParameter(f"expected a regular expression, got {text!r}: {error}", param_hint=option) from None

"""Options that choose decoders and filters of records, and the objects that they describe."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from kbroker.cli.options import decorators

if TYPE_CHECKING:
    from kbroker.client.schema_registry import SchemaRegistry
    from kbroker.decoders.decoders import Decoders
    from kbroker.decoders.expression import Expression

F = TypeVar("F", bound=Callable[..., Any])

#: Names of decoders, for --help; a test compares them with those of kbroker.decoders, which is imported when needed.
DECODERS = (
    *("auto", "json", "text", "hex", "boolean", "int16", "int32", "int64", "float", "double", "uuid", "msgpack"),
    *("avro", "protobuf", "json-schema", "registry", "kafka"),
)

#: Names of encoders, likewise.
ENCODERS = (
    *("text", "json", "hex", "base64", "boolean", "int16", "int32", "int64", "float", "double", "uuid", "msgpack"),
    *("avro", "protobuf", "json-schema", "registry"),
)


def registry_options(command: F) -> F:
    """`--registry`, `--registry-auth` and `--registry-ca`, for `schema_registry`."""
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
            type=click.Path(exists=True, dir_okay=False, path_type=Path),
            metavar="FILE",
            help="Certificates (PEM) of the authorities that may sign the registry's.",
        ),
    )(command)


def decode_options(command: F) -> F:
    """`--decode` and `--decode-key`, and the options of the registry, for `decoders_of`."""
    return decorators(
        click.option(
            "--decode",
            "value_decoder",
            type=click.Choice(DECODERS),
            metavar="FORMAT",
            help=f"Decode values: {', '.join(DECODERS[:-5])}; by the schema that they name "
            f"{', '.join(DECODERS[-5:-1])}; Kafka's own records: kafka.  "
            "[default: auto with --decode-key, --registry or --filter, else the bytes]",
        ),
        click.option("--decode-key", "key_decoder", type=click.Choice(DECODERS), metavar="FORMAT", help="Decode keys."),
        registry_options,
    )(command)


def schema_registry(url: str | None, credentials: str | None, ca_file: Path | None) -> SchemaRegistry | None:
    """Return the registry of the options, None without a URL. Raises: BadParameter."""
    if not url:
        return None
    from kbroker.client.schema_registry import SchemaRegistry

    try:
        return SchemaRegistry(url, credentials or None, ca_file)
    except (ValueError, OSError) as error:
        raise click.BadParameter(str(error), param_hint="--registry") from None


def decoders_of(
    key: str | None, value: str | None, registry: SchemaRegistry | None, *, always: bool = False
) -> Decoders | None:
    """Return the decoders of the options; None if records are printed as they are.

    Args: ``always``: whether something else needs decoded records. Raises: BadParameter.
    """
    if not (key or value or registry or always):
        return None
    from kbroker.decoders.decoders import Decoders

    try:
        return Decoders(key or "auto", value or "auto", registry)
    except ValueError as error:
        raise click.BadParameter(f"{error}: give --registry URL", param_hint="--decode") from None


def expression_of(text: str | None) -> Expression | None:
    """Return the filter of `--filter`. Raises: BadParameter, ClickException."""
    if text is None:
        return None
    from kbroker.decoders.decoded import MissingPackageError
    from kbroker.decoders.expression import Expression, ExpressionError

    try:
        return Expression(text)
    except ExpressionError as error:
        raise click.BadParameter(str(error), param_hint="--filter") from None
    except MissingPackageError as error:
        raise click.ClickException(str(error)) from None


def pattern_of(text: str, option: str) -> re.Pattern[str]:
    """Return a regular expression. Raises: BadParameter."""
    try:
        return re.compile(text)
    except (re.error, RecursionError, OverflowError) as error:
        raise click.BadParameter(f"expected a regular expression, got {text!r}: {error}", param_hint=option) from None

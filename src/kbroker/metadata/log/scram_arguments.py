"""SCRAM credentials of new users, in the form of the storage tool's option --add-scram.

Source: ``ScramParser``, ``ScramFormatter``.
"""

from __future__ import annotations

import binascii
import re

from kbroker.common.configs.config_def import INT32_MAX
from kbroker.common.java.java_values import parse_long
from kbroker.common.security.scram import MAX_ITERATIONS, MECHANISMS, MIN_ITERATIONS, Credential, make_salt
from kbroker.metadata.image.record_forms import credential_body
from kbroker.metadata.log.formatter import FormatError
from kbroker.metadata.records.metadata_record import MetadataRecord, metadata_record

_BASE64 = r"(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}(?:==)?|[A-Za-z0-9+/]{3}=?)?"


def credential_record(argument: str) -> MetadataRecord:
    """Return the record of ``MECHANISM=[name=NAME,password=PASSWORD]``.

    Further components: iterations, salt and, in place of the password, saltedpassword, the last two in base64.
    Raises: FormatError, in Kafka's words.
    """
    text = argument.strip()
    mechanism_name, equals, config = text.partition("=")
    if not equals:
        raise FormatError(f"Failed to find equals sign in SCRAM argument '{text}'")
    mechanism = MECHANISMS.get(mechanism_name)
    if mechanism is None:
        raise FormatError(f"The add-scram mechanism {mechanism_name} is not supported.")
    if not config.startswith("["):
        raise FormatError("Expected configuration string to start with [")
    if not config.endswith("]"):
        raise FormatError("Expected configuration string to end with ]")
    parts = _components(config[1:-1])
    name = parts.pop("name", None)
    if name is None:
        raise FormatError("You must supply 'name' to add-scram")
    salt = _decoded(parts.pop("salt", None), "salt")
    iterations = _iterations(parts.pop("iterations", None))
    password, salted_text = parts.pop("password", None), parts.pop("saltedpassword", None)
    salted = None
    if password is None:
        if salted_text is None:
            raise FormatError("You must supply one of 'password' or 'saltedpassword' to add-scram")
        if salt is None:
            raise FormatError("You must supply 'salt' with 'saltedpassword' to add-scram")
        salted = _decoded(salted_text, "saltedPassword")
        if not salted:
            raise FormatError("The 'saltedpassword' value must not be empty for add-scram")
    if parts:
        raise FormatError(f"Unknown SCRAM configurations: {', '.join(sorted(parts))}")
    shown_mechanism = mechanism.name.replace("-", "_")
    if iterations < MIN_ITERATIONS:
        raise FormatError(f"The 'iterations' value must be >= {MIN_ITERATIONS} for add-scram using {shown_mechanism}")
    if iterations > MAX_ITERATIONS:
        raise FormatError(f"The 'iterations' value must be <= {MAX_ITERATIONS} for add-scram using {shown_mechanism}")
    salt = make_salt() if salt is None else salt
    if salted is None:
        salted = mechanism.salted_password(password or "", salt, iterations)
    credential = Credential.from_salted_password(mechanism, salted, salt, iterations)
    return metadata_record("UserScramCredentialRecord", credential_body(name, mechanism.name, credential))


def _components(text: str) -> dict[str, str]:
    found = {}
    for component in text.rstrip(",").split(","):
        name, equals, value = component.partition("=")
        if not equals:
            raise FormatError(f"No equals sign found in SCRAM component: {component}")
        if len(value) >= 2 and value[0] == value[-1] == '"':
            value = value[1:-1]
        found[name] = value
    return found


def _decoded(text: str | None, name: str) -> bytes | None:
    if text is None:
        return None
    if re.fullmatch(_BASE64, text) is None:
        raise FormatError(f"Failed to decode given {name}: {text}")
    return binascii.a2b_base64(text.rstrip("=") + "==")


def _iterations(text: str | None) -> int:
    if text is None:
        return MIN_ITERATIONS
    found = parse_long(text)
    if found is None or not -INT32_MAX <= found <= INT32_MAX:
        raise FormatError(f"Failed to parse iterations count: {text}")
    return found

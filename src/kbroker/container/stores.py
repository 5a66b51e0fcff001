"""Java's stores of keys and certificates, as PEM settings: the files that Kafka's images get in /etc/kafka/secrets.

keytool writes PKCS 12, whatever the name of the file, since Java 9.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.serialization.pkcs12 import PKCS12KeyAndCertificates

KEYSTORE, TRUSTSTORE = "ssl.keystore.", "ssl.truststore."
_JKS = b"\xfe\xed\xfe\xed"


class StoreError(ValueError):
    """A store that cannot be read; the text names the setting, the file and the reason."""


def with_pem_stores(properties: Mapping[str, str]) -> dict[str, str]:
    """Return the settings, with the content of each PKCS 12 store as PEM text instead of its file.

    A file in a form other than PKCS 12 stays as it is, and the broker reads it as PEM. Raises: StoreError.
    """
    found = dict(properties)
    for name in properties:
        for kind in (KEYSTORE, TRUSTSTORE):
            if name.endswith(f"{kind}location"):
                password = properties.get(f"{kind}password", "")  # for listeners without their own, as in Kafka
                _replace(found, name.removesuffix(f"{kind}location"), kind, password)
    return found


def without_types(text: str) -> str:
    """Return properties without the types of stores: for a tool that reads no store, and supports PEM only."""
    return re.sub(r"(?m)^\s*[\w.-]*ssl\.(?:key|trust)store\.type\s*[=:].*$", "", text)


def _replace(properties: dict[str, str], prefix: str, kind: str, password: str) -> None:
    """Replace the store of a listener's prefix, or of all listeners, by PEM, if it is a readable file of PKCS 12.

    Args: ``password``: of all listeners. Raises: StoreError, also for Java's former format.
    """
    setting = f"{prefix}{kind}location"
    path = Path(properties[setting])
    try:
        data = path.read_bytes()
    except OSError:
        return  # the broker reports it
    if data.startswith(_JKS):
        raise StoreError(
            f"{setting}: {path} has Java's former format JKS; convert it: keytool -importkeystore -srckeystore FILE "
            "-destkeystore FILE.p12 -deststoretype PKCS12"
        )
    if not data.startswith(b"\x30"):  # PKCS 12 begins with a DER sequence
        return
    store = _loaded(setting, path, data, properties.pop(f"{prefix}{kind}password", password))
    del properties[setting]
    properties[f"{prefix}{kind}type"] = "PEM"
    if kind == TRUSTSTORE:
        properties[f"{prefix}{kind}certificates"] = _certificates(store)
        return
    if store.key is None:
        raise StoreError(f"{setting}: {path} has no private key")
    properties.pop(f"{prefix}ssl.key.password", None)
    properties[f"{prefix}{kind}key"] = _key(store)
    properties[f"{prefix}{kind}certificate.chain"] = _certificates(store)


def _loaded(setting: str, path: Path, data: bytes, password: str) -> PKCS12KeyAndCertificates:
    import warnings

    try:
        from cryptography.hazmat.primitives.serialization import pkcs12
    except ModuleNotFoundError:
        raise StoreError(f"{setting}: {path} is a PKCS 12 store, which needs: pip install cryptography") from None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # keytool writes names of countries that are too long
        try:
            return pkcs12.load_pkcs12(data, password.encode() or None)
        except ValueError as error:
            raise StoreError(f"{setting}: {path}: {error}") from None


def _key(store: PKCS12KeyAndCertificates) -> str:
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    assert store.key is not None
    return store.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()


def _certificates(store: PKCS12KeyAndCertificates) -> str:
    from cryptography.hazmat.primitives.serialization import Encoding

    own = [store.cert] if store.cert is not None else []
    return "".join(one.certificate.public_bytes(Encoding.PEM).decode() for one in [*own, *store.additional_certs])

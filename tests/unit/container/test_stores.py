"""PKCS 12 stores as PEM settings."""

from pathlib import Path

import pytest

from kbroker.container.stores import StoreError, with_pem_stores, without_types
from tests.support.certificates import Certificates, pkcs12_store


def test_stores_become_text(tmp_path: Path) -> None:
    """Key, chain and authorities become PEM text, also with a listener's prefix; other files are left to the broker."""
    made = Certificates(tmp_path)
    server, trust, missing = tmp_path / "server.jks", tmp_path / "trust.p12", tmp_path / "missing"
    server.write_bytes(pkcs12_store(made.server, b"secret"))
    trust.write_bytes(pkcs12_store(made.ca, b"secret"))
    given = {
        "listener.name.a.ssl.keystore.location": str(server),
        "listener.name.a.ssl.keystore.password": "secret",
        "listener.name.a.ssl.keystore.type": "JKS",
        "listener.name.a.ssl.key.password": "secret",
        "ssl.truststore.location": str(trust),
        "ssl.truststore.password": "secret",
        "ssl.keystore.location": str(made.server),
        "listener.name.b.ssl.keystore.location": str(missing),
        "listener.name.c.ssl.truststore.location": str(trust),
    }
    found = with_pem_stores(given)
    text = found.pop("listener.name.a.ssl.keystore.key") + found.pop("listener.name.a.ssl.keystore.certificate.chain")
    assert text == made.server.read_text()
    for prefix in ("", "listener.name.c."):  # the second has the password of the first
        assert found.pop(f"{prefix}ssl.truststore.certificates") == made.ca.read_text()
        assert found.pop(f"{prefix}ssl.truststore.type") == "PEM"
    assert found == {
        "listener.name.a.ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(made.server),
        "listener.name.b.ssl.keystore.location": str(missing),
    }


def test_unreadable_stores(tmp_path: Path) -> None:
    """A wrong password, a missing key, and the old format are errors with the setting, the file and the remedy."""
    made = Certificates(tmp_path)
    store = tmp_path / "store"
    setting = {"ssl.keystore.location": str(store)}
    store.write_bytes(pkcs12_store(made.server, b"secret"))
    with pytest.raises(StoreError, match=rf"ssl.keystore.location: {store}: Invalid password"):
        with_pem_stores({**setting, "ssl.keystore.password": "wrong"})
    store.write_bytes(pkcs12_store(made.ca, b"secret"))
    with pytest.raises(StoreError, match="has no private key"):
        with_pem_stores({**setting, "ssl.keystore.password": "secret"})
    store.write_bytes(b"\xfe\xed\xfe\xed\0\0\0\2")
    with pytest.raises(StoreError, match="keytool -importkeystore"):
        with_pem_stores(setting)


def test_types_left_out() -> None:
    """The types of all listeners' stores are left out, and other lines are kept."""
    text = "a=1\nssl.keystore.type=PKCS12\nlistener.name.b.ssl.truststore.type : JKS\nssl.keystore.type.x=2\n"
    assert without_types(text).split() == ["a=1", "ssl.keystore.type.x=2"]

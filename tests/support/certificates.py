"""Certificates of a test's own, made by openssl's program: an authority, a server, clients."""

import subprocess
from pathlib import Path

from tests.support import need

SERVER_NAMES = "subjectAltName=DNS:localhost,IP:127.0.0.1"

# All that a strict check (Python 3.13's default) asks for, whatever the machine's own openssl.cnf says.
_CONFIG = """[req]
distinguished_name = name
prompt = no
[name]
[authority]
basicConstraints = critical,CA:TRUE
keyUsage = critical,keyCertSign,cRLSign
subjectKeyIdentifier = hash
"""
_LEAF = "basicConstraints=CA:FALSE\nsubjectKeyIdentifier=hash\nauthorityKeyIdentifier=keyid\n"


class Certificates:
    """PEM files in a folder: ``ca`` signs, ``server`` has key and certificate in one file, as a keystore."""

    def __init__(self, folder: Path) -> None:
        need.program("openssl")
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.ca = folder / "ca.pem"
        self._ca_key = folder / "ca.key"
        self._config = folder / "openssl.cnf"
        self._config.write_text(_CONFIG)
        self._request("/CN=Test CA", self._ca_key, self.ca, "-x509", "-days", "2", "-extensions", "authority")
        self.server = self.make("server", "/CN=localhost", SERVER_NAMES)

    def make(self, name: str, subject: str, extensions: str = "extendedKeyUsage=clientAuth") -> Path:
        """Return a PEM file of a new key and its certificate."""
        key, request, certificate, both = (self.folder / f"{name}.{kind}" for kind in ("key", "csr", "crt", "pem"))
        self._request(subject, key, request)
        config = self.folder / f"{name}.ext"
        config.write_text(_LEAF + extensions + "\n")
        _openssl(
            "x509", "-req", "-in", str(request), "-CA", str(self.ca), "-CAkey", str(self._ca_key), "-CAcreateserial",
            "-days", "2", "-extfile", str(config), "-out", str(certificate),
        )  # fmt: skip
        both.write_text(key.read_text() + certificate.read_text())
        return both

    def _request(self, subject: str, key: Path, out: Path, *options: str) -> None:
        """A new key, and a request for a certificate (or, with -x509, one signed by itself)."""
        _openssl(
            "req", "-new", "-config", str(self._config), "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256",
            "-nodes", "-utf8", "-subj", subject, "-keyout", str(key), "-out", str(out), *options,
        )  # fmt: skip


def _openssl(*arguments: str) -> None:
    done = subprocess.run(["openssl", *arguments], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr

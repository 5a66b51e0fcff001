"""Certificates of a test's own, made by openssl's program: an authority, a server, clients."""

import subprocess
from pathlib import Path

from tests.support import need

SERVER_NAMES = "subjectAltName=DNS:localhost,IP:127.0.0.1"


class Certificates:
    """PEM files in a folder: ``ca`` signs, ``server`` has key and certificate in one file, as a keystore."""

    def __init__(self, folder: Path, key: str = "ec") -> None:
        need.program("openssl")
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self._key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"] if key == "ec" else ["-newkey", "rsa:2048"]
        self.ca = folder / "ca.pem"
        self._ca_key = folder / "ca.key"
        _openssl(
            "req", "-x509", *self._key, "-nodes", "-days", "2", "-subj", "/CN=Test CA",
            "-keyout", str(self._ca_key), "-out", str(self.ca),
        )  # fmt: skip
        self.server = self.make("server", "/CN=localhost", SERVER_NAMES)

    def make(self, name: str, subject: str, extensions: str = "extendedKeyUsage=clientAuth") -> Path:
        """Return a PEM file of a new key and its certificate."""
        key, request, certificate, both = (self.folder / f"{name}.{kind}" for kind in ("key", "csr", "crt", "pem"))
        _openssl(
            "req", "-new", *self._key, "-nodes", "-utf8", "-subj", subject, "-keyout", str(key), "-out", str(request)
        )
        config = self.folder / f"{name}.ext"
        config.write_text(extensions + "\n")
        _openssl(
            "x509", "-req", "-in", str(request), "-CA", str(self.ca), "-CAkey", str(self._ca_key), "-CAcreateserial",
            "-days", "2", "-extfile", str(config), "-out", str(certificate),
        )  # fmt: skip
        both.write_text(key.read_text() + certificate.read_text())
        return both


def _openssl(*arguments: str) -> None:
    done = subprocess.run(["openssl", *arguments], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr

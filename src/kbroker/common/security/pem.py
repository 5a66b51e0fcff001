"""Keys and certificates in PEM form, given as settings, for a library that reads files."""

from __future__ import annotations

import os
import re
import ssl
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

_BLOCK = re.compile(r"-----BEGIN ([A-Z0-9 ]+)-----(.*?)-----END \1-----", re.DOTALL)


def normal_pem(text: str) -> str:
    """Return PEM with OpenSSL's line ends, which a properties file may have lost. Raises: ValueError for other text."""
    blocks = []
    for name, content in _BLOCK.findall(text):
        if ":" in content:  # headers of an old encrypted key: line ends matter
            blocks.append(f"-----BEGIN {name}-----{content}-----END {name}-----\n")
            continue
        packed = "".join(content.split())
        lines = "\n".join(packed[at : at + 64] for at in range(0, len(packed), 64))
        blocks.append(f"-----BEGIN {name}-----\n{lines}\n-----END {name}-----\n")
    if not blocks:
        raise ValueError("not PEM")
    return "".join(blocks)


@contextmanager
def pem_file(*texts: str) -> Iterator[str]:
    """Yield the path of a temporary file with these texts for Python's ssl; only this user can read it.

    Raises: ValueError for a text that is not PEM.
    """
    content = "".join(normal_pem(text) for text in texts)
    handle, path = tempfile.mkstemp(prefix="kbroker-key-")
    try:
        with os.fdopen(handle, "w", encoding="ascii") as file:
            file.write(content)
        yield path
    finally:
        os.unlink(path)


def reason_of(error: OSError | ValueError) -> str:
    """Return the reason why Python's ssl refuses a key or certificates, in one line."""
    if isinstance(error, ssl.SSLError):
        return error.reason or "not PEM of a private key and its certificates, or not the ssl.key.password of the key"
    return (error.strerror or str(error)) if isinstance(error, OSError) else str(error)

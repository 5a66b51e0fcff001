"""Files of formatted log folders without their times: files that kbroker formatted equal those of Kafka's tool."""

import re
import struct
from base64 import urlsafe_b64decode
from pathlib import Path

_TIMES = slice(27, 43)  # first and last time of a batch
_CHECKSUM = slice(17, 21)
_LAST_LOG_TIME = slice(73, 81)  # in the first record of a snapshot


def files(*folders: Path) -> dict[str, bytes]:
    """Return the content, without times, of all files below the folders, by folder number and path."""
    return {
        f"{number}/{path.relative_to(folder)}": without_times(path.name, path.read_bytes())
        for number, folder in enumerate(folders)
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def without_times(name: str, data: bytes) -> bytes:
    """Return the content of a file with its times and checksums set to zero."""
    if name == "meta.properties":
        return re.sub(rb"^#\w{3} \w{3} \d\d [\d:]{8} \S+ \d{4}$", b"#DATE", data, flags=re.MULTILINE)
    found, at = bytearray(data), 0
    while at < len(data):
        size = 12 + struct.unpack_from(">i", data, at + 8)[0]
        for part in (_TIMES, _CHECKSUM):
            found[at + part.start : at + part.stop] = bytes(part.stop - part.start)
        at += size
    if name != "bootstrap.checkpoint":
        found[_LAST_LOG_TIME] = bytes(8)
    return bytes(found)


def without_ids(content: dict[str, bytes]) -> dict[str, bytes]:
    """Return the content with one fixed id in place of each random directory id, in text and in records."""
    found = dict(content)
    for number, name in enumerate(sorted(content)):
        if name.endswith("meta.properties"):
            match = re.search(rb"^directory\.id=(\S{22})$", content[name], flags=re.MULTILINE)
            assert match is not None, name
            marks = {match[1]: b"%022d" % number, urlsafe_b64decode(match[1] + b"=="): b"%016d" % number}
            for one, mark in marks.items():
                found = {path: data.replace(one, mark) for path, data in found.items()}
    return found

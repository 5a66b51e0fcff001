"""States of a folder that a power cut can leave, from the record of the calls that changed it (see `disk_calls.c`).

The modelled file system keeps the promises of POSIX: a file's content is durable after its fsync, the names of a folder
after the folder's fsync. Of later writes, any subset of sectors may be on the disk; of later changes of names, the
first ones in order. A file may have its new size without the content.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath
from typing import NamedTuple

SECTOR = 512


class Call(NamedTuple):
    """Recorded call. Fields: ``data``: bytes of a write at ``at``; ``size``: new size of a truncation."""

    name: str
    path: str
    other: str
    at: int
    size: int
    data: bytes


def read_record(path: Path) -> Iterator[Call]:
    """Yield the recorded calls in order."""
    with path.open("rb") as file:
        while line := file.readline():
            name, first, other, at, size = line.decode().split()
            data = file.read(int(size)) if name == "write" else b""
            yield Call(name, first, other, int(at), int(size), data)


class Content(NamedTuple):
    """Content of a file: ``data``, and zeros up to ``size``."""

    data: bytes
    size: int


class File:
    """File: durable content, and the changes since the last sync as (position, bytes) or (size, None)."""

    def __init__(self) -> None:
        self.durable = Content(b"", 0)
        self.changes: list[tuple[int, bytes | None]] = []

    def content(self, is_kept: Callable[[int], bool], *, keeps_size: bool) -> Content:
        """Return the content with the sectors of the changes that ``is_kept`` accepts by the change's number.

        Zeros at the end count only towards the size: a broker creates index files of 10 MiB and truncates them later.
        """
        data = bytearray(self.durable.data)
        kept = whole = self.durable.size
        for number, (at, written) in enumerate(self.changes):
            if written is None:
                whole = at
                if is_kept(number):
                    del data[at:]
                    kept = at
                continue
            whole = max(whole, at + len(written))
            start = 0
            while start < len(written):
                end = min(len(written), (at + start) // SECTOR * SECTOR + SECTOR - at)
                if is_kept(number):
                    if len(data) < at + end:
                        data.extend(bytes(at + end - len(data)))
                    data[at + start : at + end] = written[start:end]
                    kept = max(kept, at + end)
                start = end
        return Content(bytes(data.rstrip(b"\0")), max(kept, whole) if keeps_size else kept)

    def sync(self) -> None:
        self.durable = self.content(lambda number: True, keeps_size=False)
        self.changes.clear()


class Folder:
    """Folder: durable names, present names, and the changes since the last sync."""

    def __init__(self) -> None:
        self.durable: dict[str, File | Folder] = {}
        self.names: dict[str, File | Folder] = {}
        self._states: list[dict[str, File | Folder]] = []  # after each change

    def change(self, **names: File | Folder | None) -> None:
        """Add names, and remove those whose node is None, as one change."""
        for name, node in names.items():
            if node is None:
                self.names.pop(name, None)
            else:
                self.names[name] = node
        self._states.append(dict(self.names))

    @property
    def pending(self) -> int:
        """Number of changes since the last sync."""
        return len(self._states)

    def after(self, count: int) -> dict[str, File | Folder]:
        """Return the names after the first ``count`` changes since the last sync."""
        return self.durable if count == 0 else self._states[count - 1]

    def sync(self) -> None:
        self.durable = dict(self.names)
        self._states.clear()


class Cut(NamedTuple):
    """Choice of the changes that survive a power cut. The functions get the number of pending changes.

    Attributes: ``names``: number of changes of a folder that are kept; ``is_kept``: whether a sector of a change is
    kept; ``keeps_size``: whether a file has its new size without the content.
    """

    name: str
    names: Callable[[int], int]
    is_kept: Callable[[int, int], bool]
    keeps_size: Callable[[], bool]


def cuts(seed: int, count: int = 3) -> list[Cut]:
    """Return the cuts at a position of the record: the extreme ones and ``count`` random ones."""
    made = [
        Cut("all is kept", lambda n: n, lambda i, n: True, lambda: True),
        Cut("nothing is kept", lambda n: 0, lambda i, n: False, lambda: False),
        Cut("names without content", lambda n: n, lambda i, n: False, lambda: True),
        Cut("only the last change", lambda n: n, lambda i, n: i == n - 1, lambda: True),
        Cut("all but the first change", lambda n: n, lambda i, n: i > 0, lambda: False),
    ]
    for number in range(count):
        rng = random.Random(seed * 1000 + number)
        made.append(
            Cut(
                f"random {number}",
                lambda n, rng=rng: rng.randint(0, n),  # type: ignore[misc]
                lambda i, n, rng=rng: rng.random() < 0.5,  # type: ignore[misc]
                lambda rng=rng: rng.random() < 0.5,  # type: ignore[misc]
            )
        )
    return made


class DiskModel:
    """File system below a recorded folder. Args: ``root``: path of the folder in the record."""

    def __init__(self, root: str) -> None:
        self._root = root
        self._top = Folder()

    def apply(self, call: Call) -> None:
        """Apply a call to the present state."""
        if call.name == "drop":  # pages dropped from the cache
            return
        folder, name = self._place(call.path)
        if folder is None:
            return  # the parent folder has been removed
        node = folder.names.get(name) if name else folder
        if call.name in ("create", "folder"):
            folder.change(**{name: File() if call.name == "create" else Folder()})
        elif call.name == "remove":
            folder.change(**{name: None})
        elif call.name == "rename":
            target, new = self._place(call.other)
            if target is folder:
                folder.change(**{name: None, new: node})
            elif target is not None:
                target.change(**{new: node})
                folder.change(**{name: None})
        elif node is None:
            return
        elif call.name == "sync":
            node.sync()
        elif isinstance(node, File):
            node.changes.append((call.at, call.data) if call.name == "write" else (call.size, None))

    def _place(self, path: str) -> tuple[Folder | None, str]:
        parts = PurePosixPath(path).relative_to(self._root).parts
        folder: File | Folder | None = self._top
        for part in parts[:-1]:
            folder = folder.names.get(part) if isinstance(folder, Folder) else None
        return (folder if isinstance(folder, Folder) else None), (parts[-1] if parts else "")

    def state(self, cut: Cut) -> DiskState:
        """Return the state after a power cut."""
        state: DiskState = {}
        self._add(state, self._top, PurePosixPath(), cut)
        return state

    def _add(self, state: DiskState, folder: Folder, place: PurePosixPath, cut: Cut) -> None:
        state[place] = None
        for name, node in folder.after(cut.names(folder.pending)).items():
            if isinstance(node, Folder):
                self._add(state, node, place / name, cut)
            else:
                changes = len(node.changes)
                state[place / name] = node.content(
                    lambda i, n=changes: cut.is_kept(i, n),  # type: ignore[misc]
                    keeps_size=cut.keeps_size(),
                )


#: Names and contents; a folder has None, and comes before its names.
DiskState = dict[PurePosixPath, Content | None]


def digest(state: DiskState) -> bytes:
    """Return a hash of a state, equal for states with the same names and contents."""
    return hashlib.sha256(repr(sorted(state.items())).encode()).digest()


def write_state(state: DiskState, place: Path) -> None:
    """Write a state into a new folder."""
    for path, content in state.items():
        if content is None:
            (place / path).mkdir()
        else:
            with (place / path).open("wb") as file:
                file.write(content.data)
                file.truncate(content.size)

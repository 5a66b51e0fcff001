"""System calls on a folder that fail or wait on demand, and a record of those that change it: see `disk_calls.c`."""

import ctypes
import mmap
import struct
import sys
from pathlib import Path

from tests.support.preloaded import preloaded

SOURCE = Path(__file__).with_suffix(".c")
CALLS = {"write": 1, "sync": 2, "truncate": 4, "rename": 8, "open": 16, "unlink": 32, "mkdir": 64}
FAIL, SHORT, BLOCK = 1, 2, 3
ALWAYS = 1 << 62
_CONTROL = struct.Struct("8q256s512s512s")


class DiskCalls:
    """Control of the system calls of processes that have ``environment``. Args: ``root``: the folder."""

    def __init__(self, place: Path, root: Path) -> None:
        library, control = preloaded(SOURCE), place / "disk_calls.control"
        control.write_bytes(bytes(4096))
        self.environment = {"LD_PRELOAD": str(library), "DISK_CALLS": str(control)}
        self.wrapper = ("env", *(f"{name}={value}" for name, value in self.environment.items()))
        self._control = Control(control)
        self._control.set(root=root)

    def fail(self, number: int, *calls: str, part: str = "", first: int = 1, times: int = ALWAYS) -> None:
        """Make calls on paths that contain ``part`` fail with this error, from the call numbered ``first``."""
        self._control.set(calls=calls, error=number, part=part, first=first, times=times)

    def block(self, *calls: str, part: str) -> None:
        """Make calls on paths that contain ``part`` wait until ``repair``, as those on a disk that does not respond."""
        self._control.set(calls=calls, action=BLOCK, part=part)

    @property
    def blocked(self) -> int:
        """Number of calls that began to wait since ``block``."""
        return self._control.failed

    def repair(self) -> None:
        """Make all calls succeed again."""
        self._control.set()


class Control:
    """Shared memory with the numbers that `disk_calls.c` reads and counts. Args: ``path``: the mapped file."""

    def __init__(self, path: Path) -> None:
        with path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), 4096)

    def set(
        self,
        calls: tuple[str, ...] = (),
        action: int = FAIL,
        error: int = 0,
        first: int = 1,
        times: int = ALWAYS,
        part: str = "",
        root: Path | None = None,
        record: Path | None = None,
    ) -> None:
        """Set the failing calls and the record, and restart the counts. Args: ``root``: None keeps the folder."""
        fields = _CONTROL.unpack_from(self._map)
        mask = sum(CALLS[name] for name in calls)
        kept = fields[9] if root is None else str(root).encode()
        self._map[:8] = bytes(8)  # no call is counted during the change
        numbers = (0, action, error, first, times, 0, 0, int(record is not None))
        _CONTROL.pack_into(self._map, 0, *numbers, part.encode(), kept, str(record or "").encode())
        self._map[:8] = mask.to_bytes(8, sys.byteorder)

    @property
    def counted(self) -> int:
        """Number of matching calls."""
        return int(_CONTROL.unpack_from(self._map)[5])

    @property
    def failed(self) -> int:
        """Number of calls that failed, or began to wait."""
        return int(_CONTROL.unpack_from(self._map)[6])


def mark(text: str) -> None:
    """Write an event to the record of this process."""
    ctypes.CDLL(None).disk_mark(text.encode())

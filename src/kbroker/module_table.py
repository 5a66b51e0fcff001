"""Table of the modules that a start of a broker loads, with their byte code: one file instead of a search for each.

A start that had to search for a module writes the table beside the byte code of this module; later starts read it. As
byte code, it is used only while the file of the module has the recorded time and size, and is written only where
Python writes byte code.
"""

from __future__ import annotations

import _frozen_importlib_external as files  # that of `importlib.machinery`, already loaded
import _imp
import marshal
import os
import sys

TYPE_CHECKING = False  # that of `typing`, which takes milliseconds to load
if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.machinery import ModuleSpec
    from types import CodeType, ModuleType
    from typing import TypeAlias

    Stamp: TypeAlias = tuple[int, int]
    Row: TypeAlias = tuple[str, Stamp | None, bool, bytes | None]  # file, its stamp, is a package, byte code

PREFIX = "kbroker."
HASH_KEY = int.from_bytes(files.MAGIC_NUMBER, "little")  # byte code of another Python is damage
HASH_SIZE = 8


class ModuleTable:
    """Finder of kbroker's modules for ``sys.meta_path``."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._rows = self._read()
        self._is_complete = True

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the spec that Python's own finder would return, None for a module that is absent or changed."""
        if not name.startswith(PREFIX):
            return None
        file, stamp, is_package, code = self._rows.get(name, ("", None, False, None))
        if stamp is None or stamp_of(file) != stamp:
            self._is_complete = False
            return None
        loader = _CodeLoader(name, file, code) if code else files.ExtensionFileLoader(name, file)
        folders = [os.path.dirname(file)] if is_package else None
        return files.spec_from_file_location(name, file, loader=loader, submodule_search_locations=folders)

    def close(self) -> None:
        """Stop finding modules, and write the table if one of those loaded now was not found in it."""
        sys.meta_path = [finder for finder in sys.meta_path if finder is not self]  # another thread may be iterating
        if not self._is_complete and not sys.dont_write_bytecode:
            self._rows |= {name: row for name in list(sys.modules) if (row := row_of(name)) is not None}
            self._write()
        self._rows = {}

    def _read(self) -> dict[str, Row]:
        """Return the rows of the file; none if it is absent, damaged or of another Python."""
        try:
            with open(self._path, "rb") as file:
                found = file.read()
        except OSError:
            return {}
        data = memoryview(found)[HASH_SIZE:]
        if found[:HASH_SIZE] != _imp.source_hash(HASH_KEY, data):
            return {}
        rows: dict[str, Row] = marshal.loads(data)
        return rows

    def _write(self) -> None:
        data = marshal.dumps(self._rows)
        written = f"{self._path}.{os.getpid()}"
        try:
            with open(written, "wb") as file:
                file.write(_imp.source_hash(HASH_KEY, data) + data)
            os.replace(written, self._path)
        except OSError:  # an installation that only others may write
            return


class _CodeLoader(files.SourceFileLoader):
    """Loader of a source file whose byte code was read with the table."""

    def __init__(self, name: str, path: str, code: bytes) -> None:
        super().__init__(name, path)
        self._code: bytes | None = code

    def get_code(self, fullname: str) -> CodeType | None:
        """Return the byte code; a second call reads the file, so that no module keeps its bytes."""
        code, self._code = self._code, None
        return super().get_code(fullname) if code is None else marshal.loads(code)


def install() -> ModuleTable | None:
    """Let the table find the modules loaded from now on, until it is closed; None where byte code has no file."""
    cached = __spec__.cached
    if cached is None:
        return None
    table = ModuleTable(f"{cached}.modules")
    sys.meta_path.insert(0, table)
    return table


def stamp_of(file: str) -> Stamp | None:
    """Return time and size of a file, None if it is absent."""
    try:
        found = os.stat(file)
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size


def row_of(name: str) -> Row | None:
    """Return the row of a loaded module; None for one of another package or that Python did not load from a file."""
    spec = getattr(sys.modules.get(name), "__spec__", None)
    kinds = (files.SourceFileLoader, files.ExtensionFileLoader)
    if not name.startswith(PREFIX) or spec is None or not isinstance(spec.loader, kinds):
        return None
    stamp, code = stamp_of(spec.origin), spec.loader.get_code(name)
    is_package = spec.submodule_search_locations is not None
    return spec.origin, stamp, is_package, None if code is None else marshal.dumps(code)

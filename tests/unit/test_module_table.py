"""The table of modules of a start: what it finds, and when it lets Python search."""

from __future__ import annotations

import gc
import importlib.util
import os
import sys
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType

import pytest

from kbroker import __main__, module_table, serving
from kbroker.common import units
from kbroker.log import _append  # type: ignore[attr-defined]  # a compiled module without a stub
from kbroker.module_table import ModuleTable

#: Specs of Python's own search; pytest has loaded these modules with its own loader.
SEARCHED = {
    name: PathFinder.find_spec(name, sys.modules[name.rpartition(".")[0]].__path__)
    for name in ("kbroker.common", units.__name__, _append.__name__)
}


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A table of the modules that this process has loaded."""
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    monkeypatch.setattr(sys, "meta_path", sys.meta_path)  # `close` replaces it
    for name, spec in SEARCHED.items():
        monkeypatch.setattr(sys.modules[name], "__spec__", spec)
    path = str(tmp_path / "table.modules")
    started = ModuleTable(path)
    assert started.find_spec(units.__name__) is None
    started.close()
    assert os.listdir(tmp_path) == ["table.modules"]
    return path


def executed(spec: ModuleSpec) -> ModuleType:
    """Return a new module of a spec."""
    module = importlib.util.module_from_spec(spec)
    assert spec.loader is not None
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", SEARCHED)
def test_a_spec_is_that_of_a_search(path: str, name: str) -> None:
    """Package, module and compiled module have the same file, byte code file and folders as without the table."""
    found, searched = ModuleTable(path).find_spec(name), SEARCHED[name]
    assert found is not None
    assert searched is not None
    for attribute in ("name", "origin", "cached", "has_location", "submodule_search_locations", "parent"):
        assert getattr(found, attribute) == getattr(searched, attribute), attribute


def test_a_module_is_executed_from_the_table(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its byte code comes from the table, a second request for it and the source come from the files."""
    spec = ModuleTable(path).find_spec(units.__name__)
    assert spec is not None
    loader = spec.loader
    assert isinstance(loader, module_table._CodeLoader)
    with monkeypatch.context() as only_the_table:
        only_the_table.setattr(loader, "get_data", lambda path: pytest.fail(f"{path} was read"))
        assert executed(spec).parse_bytes("2MiB") == 2 << 20
    assert loader.get_code(units.__name__) == loader.get_code(units.__name__)
    assert loader.get_source(units.__name__) == Path(units.__file__).read_text(encoding="utf-8")


def test_what_is_changed_or_absent_is_searched(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A row is used only for the same time and size; modules of other packages are never found."""
    table = ModuleTable(path)
    assert [table.find_spec(name) for name in ("json", "kbroker", "kbroker.absent")] == [None] * 3
    for other in ((0, 1), None):
        with monkeypatch.context() as changed:
            changed.setattr(module_table, "stamp_of", lambda file, other=other: other)
            assert table.find_spec(units.__name__) is None
    assert table.find_spec(units.__name__) is not None


@pytest.mark.parametrize("at", [0, 7, 8, 1000, -1])
def test_a_damaged_table_is_written_again(path: str, at: int) -> None:
    """A flipped bit anywhere, and a file that was cut: the start searches, and the next one has a table again."""
    sound = Path(path).read_bytes()
    flipped = bytearray(sound)
    flipped[at] ^= 1
    for damaged in (bytes(flipped), sound[:at], b""):
        Path(path).write_bytes(damaged)
        table = ModuleTable(path)
        assert table.find_spec(units.__name__) is None
        table.close()
        assert ModuleTable(path).find_spec(units.__name__) is not None


def test_a_complete_table_is_kept(path: str) -> None:
    """A start that found every module writes nothing; a folder that cannot be written is no error."""
    written = os.stat(path).st_mtime_ns
    table = ModuleTable(path)
    assert table.find_spec(units.__name__) is not None
    table.close()
    assert os.stat(path).st_mtime_ns == written
    readonly = ModuleTable(os.path.join(path, "below-a-file"))
    assert readonly.find_spec(units.__name__) is None
    readonly.close()


def test_no_table_is_written_without_byte_code(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """PYTHONDONTWRITEBYTECODE holds for the table as well."""
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    os.unlink(path)
    table = ModuleTable(path)
    assert table.find_spec(units.__name__) is None
    table.close()
    assert not os.path.exists(path)


def test_serve_reads_the_table_until_it_is_ready(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """`kbroker serve` installs it before it loads a broker and closes it when the broker is ready."""
    before, seen = list(sys.meta_path), []
    monkeypatch.setattr(sys, "meta_path", list(before))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)

    def run(read_properties: object, loaded: object) -> None:
        assert callable(loaded)
        seen.append([type(finder) for finder in sys.meta_path][:1])
        loaded()

    monkeypatch.setattr(serving, "serve", run)
    try:
        with pytest.raises(SystemExit):
            __main__._serve(["--in-memory"])
    finally:
        gc.enable()
    assert (seen, sys.meta_path) == ([[ModuleTable]], before)

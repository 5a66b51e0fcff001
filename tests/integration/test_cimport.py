"""Foreign package that compiles against the .pxd files of the wheel and of the strict editable installation."""

import importlib.util
import os
import shutil
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

import kbroker._core
from tests.support.broker import run_to_end

ROOT = Path(__file__).resolve().parents[2]
FOREIGN = ROOT / "examples" / "foreign_cimport"
WHEEL_LIMIT_BYTES = 6_000_000
CHECK = """
import kbroker._core
from foreign.sessions import Leases
from kbroker._core.clock import VirtualClock
from kbroker._core.requests.memory_pool import MemoryPool

clock, pool = VirtualClock(), MemoryPool(1000, strict=True)
leases = Leases(pool, clock)
assert leases.grant(100, 30, 50) == 33
assert (len(leases), pool.available_bytes) == (33, 10)
clock.advance_ms(49)
leases.advance()
assert len(leases) == 33
clock.advance_ms(2)
leases.advance()
assert (len(leases), leases.expired, pool.available_bytes) == (0, 33, 1000)
leases.grant(5, 10, 1000)
del leases
assert pool.available_bytes == 1000
print(kbroker._core.__file__)
"""
FAST = {"CFLAGS": "-O0", "CXXFLAGS": "-O0"}  # the compiler's optimization is not under test
pytestmark = pytest.mark.slow


def run(*command: object, **environment: str) -> str:
    """Run a command and return its output; a failure shows everything that it printed."""
    clean = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "PYTHONHOME")}
    return run_to_end([str(c) for c in command], seconds=280, env={**clean, **environment})


def copied_tree(into: Path) -> Path:
    """Copy the sources with the C++ and compiled modules of this checkout, which are newer and so not built again."""
    into.mkdir()
    ignore = shutil.ignore_patterns("*.so", "__pycache__", "*.egg-info")
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy2(ROOT / name, into / name)
    shutil.copytree(
        ROOT / "src", into / "src", ignore=lambda d, n: {*ignore(d, n), *({"_core"} if d.endswith("kbroker") else ())}
    )
    for name in ("cython", "pxd"):
        if (ROOT / "build" / name).is_dir():
            shutil.copytree(ROOT / "build" / name, into / "build" / name)
    compiled = into / "build" / f"lib.{sysconfig.get_platform()}-{sys.implementation.cache_tag}"
    sources = [p.relative_to(into / "src").with_suffix("") for p in (into / "src").rglob("*.pyx")]
    for inside in (*sources, Path("_core", "_cython_utility")):
        parts = inside.parts if inside.parts[0] == "kbroker" else ("kbroker", *inside.parts)
        spec = importlib.util.find_spec(".".join(parts))
        if spec is not None and spec.origin is not None:
            target = compiled.joinpath(*parts[:-1], Path(spec.origin).name)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(spec.origin, target)
    return into


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Wheel that is built without network by the tools of this environment."""
    folder = tmp_path_factory.mktemp("wheel")
    tree = copied_tree(folder / "tree")
    pip_wheel(tree, folder)
    (built,) = folder.glob("kbroker-*.whl")
    return built


def pip_wheel(source: Path, into: Path) -> None:
    options = ("-q", "--no-deps", "--no-build-isolation", "--no-index")
    run(sys.executable, "-m", "pip", "wheel", *options, "-w", into, source)


def build_and_check(python: Path | str, tree: Path, **environment: str) -> str:
    """Compile a copy of the foreign package with `python`, run the check, and return the path of kbroker's package."""
    shutil.copytree(FOREIGN, tree)
    build = "sys.argv = ['setup.py', '-q', 'build_ext', '--build-lib', 'out']; runpy.run_path('setup.py')"
    clean = f"import os, runpy, sys; os.chdir({str(tree)!r}); {build}"
    run(python, "-c", clean, **environment, **FAST)
    shutil.copy2(tree / "src" / "foreign" / "__init__.py", tree / "out" / "foreign")
    return run(python, "-c", f"import sys; sys.path.insert(0, {str(tree / 'out')!r})\n{CHECK}", **environment).strip()


def test_from_the_wheel(wheel: Path, tmp_path: Path) -> None:
    """The foreign package compiles and runs in a new virtual environment with the wheel."""
    place = tmp_path / "venv"
    venv.create(place, with_pip=False, symlinks=True)
    python = place / "bin" / "python"
    site = Path(run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip())
    run(
        sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-index", "--no-compile", "--target", site, wheel
    )
    tools = sysconfig.get_path("purelib")  # Cython and setuptools of this environment, at the end of the path
    (site / "tools.pth").write_text(tools + "\n")
    found = build_and_check(python, tmp_path / "foreign")
    assert Path(found).is_relative_to(site)


def test_the_wheel_has_public_declarations_only(wheel: Path) -> None:
    """The wheel has only the .pxd files and headers of `kbroker._core`, which are its public interface."""
    with zipfile.ZipFile(wheel) as archive:
        shipped = {name for name in archive.namelist() if name.endswith((".pxd", ".h"))}
    core = {p for kind in ("*.pxd", "*.h") for p in (ROOT / "src" / "_core").rglob(kind)}
    assert shipped == {f"kbroker/{p.relative_to(ROOT / 'src').as_posix()}" for p in core} | {"kbroker/__init__.pxd"}


def test_from_the_editable_install(tmp_path: Path) -> None:
    """The foreign package compiles and runs with the strict editable installation."""
    searched = os.pathsep.join(p for p in sys.path if p)
    found = build_and_check(sys.executable, tmp_path / "foreign", PYTHONPATH=searched)
    assert Path(found) == Path(kbroker._core.__file__)


EVERYTHING = """
from Cython.Build import cythonize
from setuptools import Extension, setup

setup(
    script_args=["-q", "build_ext", "--inplace"],
    ext_modules=cythonize([
        Extension(
            "everything", ["everything.pyx"], language="c++", include_dirs=[{headers!r}],
            extra_compile_args=["-std=c++17", "-O0"],
        )
    ]),
)
"""


def test_every_public_declaration(tmp_path: Path) -> None:
    """One foreign module can cimport every .pxd file of `_core`; docs/embedding.md names each of their folders."""
    core = Path(kbroker._core.__file__).parent
    names = [p.relative_to(core).with_suffix("").parts for p in sorted(core.rglob("*.pxd")) if p.name[0] != "_"]
    text = (ROOT / "docs" / "embedding.md").read_text(encoding="utf-8")
    assert [name for name in sorted({parts[0] for parts in names}) if f"`{name}`" not in text] == []
    lines = [f"cimport kbroker._core.{'.'.join(parts)}" for parts in names]
    (tmp_path / "everything.pyx").write_text("\n".join(["# cython: language_level=3", *lines, ""]))
    (tmp_path / "build.py").write_text(EVERYTHING.format(headers=str(core)))
    searched = os.pathsep.join(p for p in sys.path if p)
    place = f"import os, runpy; os.chdir({str(tmp_path)!r}); "
    run(sys.executable, "-c", place + "runpy.run_path('build.py')", PYTHONPATH=searched)
    run(sys.executable, "-c", place + "import sys; sys.path.insert(0, '.'); import everything", PYTHONPATH=searched)


def test_what_the_wheel_holds(wheel: Path) -> None:
    """The wheel has at most 6 MB of compiled modules, .pxd, .pyi, headers and py.typed, but no C, C++ or Cython
    sources.
    """
    assert wheel.stat().st_size <= WHEEL_LIMIT_BYTES
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    kinds = {Path(n).suffix for n in names if n.startswith("kbroker/")}
    of_pages = {".html", ".css", ".js", ".svg", ".LICENSE", ".md"}
    assert kinds == {".py", ".pyi", ".pxd", ".h", ".so", ".json", ".properties", ".typed"} | of_pages
    for wanted in (
        "py.typed",
        "_core/py.typed",
        "_core/timer/timing_wheel.pxd",
        "_core/timer/timing_wheel.pyi",
        "_core/__init__.pxd",
    ):
        assert f"kbroker/{wanted}" in names
    assert "pyspark_kbroker.py" in names  # Spark imports this module for format("kbroker")
    outside = {n.split("/")[0] for n in names} - {"kbroker", "pyspark_kbroker.py"}
    assert [n for n in outside if not n.endswith(".dist-info")] == []

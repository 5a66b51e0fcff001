"""Compilation of Cython sources outside the wheels against the installed kbroker, at their first use.

`tests/native` and `bench/purgatory/native` hold such sources. Each build is kept in a folder of build/ named by a
digest of everything that the result depends on. Requires Cython and a C++ compiler.
"""

import gc
import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

try:
    import fcntl
except ImportError:  # Windows, where one process runs the tests
    fcntl = None  # type: ignore[assignment]

ROOT = Path(__file__).resolve().parents[2]
SANITIZE = os.environ.get("KBROKER_SANITIZED", "")  # set by tests/lint/sanitize.sh: compile as kbroker was compiled
COMPILE_ARGS = ["-std=c++17", "-O2", "-g1", "-ffp-contract=off", "-Wno-unused-function"]
if SANITIZE:
    COMPILE_ARGS = ["-std=c++17", "-O1", "-g", "-fno-omit-frame-pointer", f"-fsanitize={SANITIZE}"]
DIRECTIVES = {"language_level": "3", "cdivision": True, "boundscheck": False, "wraparound": False}


class CannotCompile(Exception):
    """Cython or a C++ compiler is missing; the message names the package to install."""


def kbroker_root() -> Path:
    """Return the folder that holds the package kbroker as Cython finds it, with its .pxd files."""
    spec = importlib.util.find_spec("kbroker")
    if spec is None or spec.origin is None:
        raise SystemExit("kbroker is not installed: `make build`, or PYTHONPATH=src in a built tree")
    return Path(spec.origin).parents[1]


def check_tools() -> None:
    """Raise CannotCompile if Cython, setuptools or a C++ compiler is missing."""
    if sys.platform == "win32":
        raise CannotCompile("sources of the tests are compiled with the options of gcc and clang, not on Windows")
    if importlib.util.find_spec("Cython") is None or importlib.util.find_spec("setuptools") is None:
        raise CannotCompile("Cython or setuptools is missing: pip install Cython setuptools")
    compiler = (os.environ.get("CXX") or sysconfig.get_config_var("CXX") or "c++").split()[0]
    if shutil.which(compiler) is None:
        raise CannotCompile(f"the C++ compiler {compiler} is missing: on Debian, apt-get install g++")


def digest(sources: Path, package: Path) -> str:
    """Return a digest of the sources and of every .pxd and header of kbroker, which determine the layout of structs.

    Broken links, which an editable install keeps for files that were renamed, are ignored: no source includes them.
    """
    state = hashlib.sha256(f"{sys.version} {COMPILE_ARGS} {DIRECTIVES}".encode())
    for folder, kinds in ((sources, (".pyx", ".pxd")), (package, (".pxd", ".h"))):
        for path in sorted(p for p in folder.rglob("*") if p.suffix in kinds and p.is_file()):
            state.update(str(path.relative_to(folder)).encode() + path.read_bytes())
    return state.hexdigest()[:12]


def compile_into(folder: Path, name: str, sources: Path) -> None:
    """Stage the sources under the dotted package `name` and build them there."""
    from Cython.Build import cythonize
    from setuptools import Distribution, Extension

    root = kbroker_root()
    package = folder.joinpath(*name.split("."))
    shutil.rmtree(folder, ignore_errors=True)
    package.mkdir(parents=True)
    for source in sources.iterdir():
        if source.suffix in (".pyx", ".pxd"):
            shutil.copy2(source, package)
    for part in (package, *package.parents):
        if part == folder:
            break
        for marker in ("__init__.py", "__init__.pxd"):
            (part / marker).touch()
    os.chdir(folder)
    gc.disable()  # Cython's trees are cyclic, and collecting them takes a third of its time
    extensions = cythonize(
        [
            Extension(
                f"{name}.{source.stem}",
                [str(source.relative_to(folder))],
                language="c++",
                include_dirs=[str(root / "kbroker" / "_core")],
                extra_compile_args=COMPILE_ARGS,
                extra_link_args=[f"-fsanitize={SANITIZE}"] if SANITIZE else [],
            )
            for source in sorted(package.glob("*.pyx"))
        ],
        include_path=[str(folder), str(root)],
        compiler_directives=DIRECTIVES,
    )
    distribution = Distribution({"name": name, "ext_modules": extensions})
    command = distribution.get_command_obj("build_ext")
    command.inplace, command.parallel = True, os.cpu_count()
    command.ensure_finalized()
    command.run()


def built(name: str, sources: Path) -> Path:
    """Return the folder that holds the dotted package `name`, compiled from all .pyx files of `sources`.

    The sources are compiled in a separate process if necessary; of several callers one compiles and the others wait.
    Raises: CannotCompile; RuntimeError with the compiler's output when a source does not compile.
    """
    kept = ROOT / "build" / name
    folder = kept / digest(sources, kbroker_root() / "kbroker")
    if folder.exists():
        return folder
    check_tools()
    kept.mkdir(parents=True, exist_ok=True)
    with (kept / "lock").open("w") as lock:
        if fcntl is not None:
            fcntl.flock(lock, fcntl.LOCK_EX)  # freed by close
        if folder.exists():
            return folder
        staged = Path(tempfile.mkdtemp(prefix=f"{folder.name}-", dir=kept))
        clean = {key: value for key, value in os.environ.items() if key != "LD_PRELOAD"}
        command = [sys.executable, str(Path(__file__).resolve()), str(staged), name, str(sources)]
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=clean)
        if done.returncode != 0:
            shutil.rmtree(staged)
            raise RuntimeError(f"{name} does not compile:\n{done.stdout}\n{done.stderr}")
        staged.rename(folder)
    return folder


if __name__ == "__main__":
    compile_into(Path(sys.argv[1]).resolve(), sys.argv[2], Path(sys.argv[3]).resolve())

"""Compile the old design against the installed kbroker: python bench/purgatory/build.py

It goes to build/purgatory, one folder for each state of the sources, and is no part of any wheel; all else that the
study runs is in kbroker.spark.purgatory. Needs Cython and a C++ compiler.
"""

import hashlib
import importlib
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
NATIVE = Path(__file__).with_name("native")
PACKAGE = "purgatory_old_design"
SANITIZE = os.environ.get("KBROKER_SANITIZED", "")  # set by tests/lint/sanitize.sh: the study is built as kbroker was
COMPILE_ARGS = ["-std=c++17", "-O2", "-g1", "-Wno-unused-function"]
if SANITIZE:
    COMPILE_ARGS = ["-std=c++17", "-O1", "-g", "-fno-omit-frame-pointer", f"-fsanitize={SANITIZE}"]


def kbroker_root() -> Path:
    """The folder that holds the package kbroker as Cython sees it, with its .pxd files."""
    spec = importlib.util.find_spec("kbroker")
    if spec is None or spec.origin is None:
        raise SystemExit("kbroker is not installed: `make build`, or PYTHONPATH=src in a built tree")
    return Path(spec.origin).parents[1]


def digest(*folders: Path) -> str:
    """Of all that the result depends on."""
    state = hashlib.sha256(f"{sys.version} {COMPILE_ARGS}".encode())
    for source in sorted(p for folder in folders for p in folder.glob("*.p*") if p.suffix in (".pyx", ".pxd")):
        state.update(source.name.encode() + source.read_bytes())
    return state.hexdigest()[:12]


def compile_into(folder: Path, root: Path) -> None:
    """Stage the sources under their package's name and build them there."""
    from Cython.Build import cythonize
    from setuptools import Distribution, Extension

    package = folder / PACKAGE
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(NATIVE, package, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("__init__.py", "__init__.pxd"):
        (package / name).touch()
    here = Path.cwd()
    os.chdir(folder)
    try:
        extensions = cythonize(
            [
                Extension(
                    f"{PACKAGE}.{source.stem}",
                    [f"{PACKAGE}/{source.name}"],
                    language="c++",
                    include_dirs=[str(root / "kbroker" / "_core")],
                    extra_compile_args=COMPILE_ARGS,
                    extra_link_args=[f"-fsanitize={SANITIZE}"] if SANITIZE else [],
                )
                for source in sorted(package.glob("*.pyx"))
            ],
            include_path=[str(folder), str(root)],
            compiler_directives={"language_level": "3", "cdivision": True, "boundscheck": False, "wraparound": False},
        )
        distribution = Distribution({"name": PACKAGE, "ext_modules": extensions})
        command = distribution.get_command_obj("build_ext")
        command.inplace, command.parallel = True, os.cpu_count()
        command.ensure_finalized()
        command.run()
    finally:
        os.chdir(here)


def built() -> Path:
    """The folder to put on `sys.path` for PACKAGE; compiles in a process of its own if need be."""
    root = kbroker_root()
    package = root / "kbroker"
    folder = ROOT / "build" / "purgatory" / digest(NATIVE, package / "_core", package / "spark" / "purgatory")
    if not folder.exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        staged = Path(tempfile.mkdtemp(prefix=f"{folder.name}-", dir=folder.parent))
        clean = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
        command = [sys.executable, str(Path(__file__).resolve()), str(staged)]
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=clean)
        if done.returncode != 0:
            raise RuntimeError(f"the old design does not compile:\n{done.stdout}\n{done.stderr}")
        try:
            staged.rename(folder)
        except OSError:  # another process was faster
            shutil.rmtree(staged)
    return folder


def old_design() -> Any:
    """The old design, as `StudyRun` takes it."""
    folder = str(built())
    if folder not in sys.path:
        sys.path.insert(0, folder)
    return importlib.import_module(f"{PACKAGE}.old_design").OldDesign()


def main() -> None:
    if len(sys.argv) < 2:
        print(built())
        return
    compile_into(Path(sys.argv[1]).resolve(), kbroker_root())


if __name__ == "__main__":
    main()

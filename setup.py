"""Compile src/_core/*.pyx as kbroker._core.* and src/kbroker/**/*.pyx in place; what is static is in pyproject.toml."""

import os
import shutil
import sys
from pathlib import Path

from Cython.Build import cythonize
from setuptools import Extension, find_packages, setup
from setuptools.command.build_ext import build_ext

SRC, STAGE = Path("src"), Path("build/pxd")
TRACE = os.environ.get("KBROKER_LINETRACE") == "1"  # coverage build
BOUNDS = os.environ.get("KBROKER_BOUNDS") == "1"  # checked build: every index, every division
SANITIZE = os.environ.get("KBROKER_SANITIZE", "")  # "address,undefined" or "thread"


def module_path(source: Path) -> Path:
    """src/_core/x.pyx is kbroker/_core/x; src/kbroker/log/_y.pyx is kbroker/log/_y."""
    inside = source.relative_to(SRC).with_suffix("")
    return inside if inside.parts[0] == "kbroker" else "kbroker" / inside


def inside_source(pattern: str) -> list[Path]:
    """Sources below src, the convenience link src/kbroker/_core left out."""
    link = SRC / "kbroker" / "_core"
    return sorted(p for p in SRC.rglob(pattern) if link not in p.parents)


SOURCES = inside_source("*.pyx")
PXDS = inside_source("*.pxd")
HEADERS = inside_source("*.h")

if sys.platform == "win32":
    COMPILE_ARGS = ["/std:c++17", "/O2"]
    LINK_ARGS: list[str] = []
else:
    COMPILE_ARGS = ["-std=c++17", "-O2", "-g0", "-ffp-contract=off", "-fvisibility=hidden", "-Wno-unused-function"]
    LINK_ARGS = ["-Wl,-s"] if sys.platform.startswith("linux") and not SANITIZE else []
    if SANITIZE:
        COMPILE_ARGS = ["-std=c++17", "-O1", "-g", "-fno-omit-frame-pointer", f"-fsanitize={SANITIZE}"]
        LINK_ARGS = [f"-fsanitize={SANITIZE}"]

DIRECTIVES = {
    "language_level": "3",
    "embedsignature": True,
    "linetrace": TRACE,
    "cdivision": not BOUNDS,
    "boundscheck": BOUNDS,
    "wraparound": False,
    "initializedcheck": BOUNDS,
    "show_performance_hints": True,
}


class build_core(build_ext):
    """Translate at build time only, so that metadata and sdist stay fast and the sdist keeps the .pyx."""

    def build_extensions(self) -> None:
        stage_pxd_tree()
        done = cythonize(
            self.extensions,
            include_path=[str(STAGE)],
            build_dir=None if TRACE else "build/cython",
            compiler_directives=DIRECTIVES,
            nthreads=0,
        )
        for ext, translated in zip(self.extensions, done, strict=True):
            ext.sources = translated.sources
        if not self.parallel:
            self.parallel = os.cpu_count() or 1
        super().build_extensions()


def stage_pxd_tree() -> None:
    """Cython finds modules by directory name, so it gets a tree of .pxd files with the real names."""
    keep = set()
    for pxd in PXDS:
        target = (STAGE / module_path(pxd)).with_suffix(".pxd")
        target.parent.mkdir(parents=True, exist_ok=True)
        if not target.exists() or target.read_bytes() != pxd.read_bytes():
            shutil.copy2(pxd, target)
        keep.add(target)
    for folder in [p for p in STAGE.rglob("*") if p.is_dir()]:
        (folder / "__init__.pxd").touch()
        keep.add(folder / "__init__.pxd")
    for stale in [p for p in STAGE.rglob("*.pxd") if p not in keep]:
        stale.unlink()


def extension(source: Path) -> Extension:
    return Extension(
        ".".join(module_path(source).parts),
        [source.as_posix()],
        depends=[str(d) for d in (*PXDS, *HEADERS)],
        include_dirs=["src/_core"],
        language="c++",
        extra_compile_args=COMPILE_ARGS,
        extra_link_args=LINK_ARGS,
        define_macros=[("CYTHON_TRACE_NOGIL", "1")] * TRACE,
    )


setup(
    cmdclass={"build_ext": build_core},
    packages=[*find_packages("src", include=["kbroker", "kbroker.*"], exclude=["kbroker._core"]), "kbroker._core"],
    py_modules=["pyspark_kbroker"],  # Spark finds the data source by this name
    package_dir={"": "src", "kbroker": "src/kbroker", "kbroker._core": "src/_core"},
    package_data={"": ["py.typed", "*.pxd", "*.pyi", "*.h", "*.json", "*.properties"]},
    include_package_data=False,
    ext_modules=[extension(p) for p in SOURCES],
    options={"editable_wheel": {"mode": "strict"}},
)

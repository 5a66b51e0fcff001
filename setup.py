"""Compile src/_core/*.pyx as kbroker._core.* and src/kbroker/**/*.pyx; static metadata is in pyproject.toml."""

import ast
import functools
import gc
import hashlib
import json
import marshal
import multiprocessing
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

from Cython.Build import cythonize
from Cython.Build.Dependencies import create_dependency_tree
from Cython.Compiler import Options
from Cython.Compiler.Main import Context
from setuptools import Extension, find_packages, setup
from setuptools.command.build_ext import build_ext
from setuptools.command.build_py import build_py
from setuptools.modified import newer_group

SRC, STAGE, KEPT = Path("src"), Path("build/pxd"), Path("build/extensions")
SHARED = "kbroker._core._cython_utility"  # utility code that Cython would repeat in each module
MESSAGES, TABLES = SRC / "kbroker" / "protocol" / "messages", Path("build/tables")
# Numbers shared by Python and Cython: the Python file is their only source, and the build makes the .pxd from it.
SHARED_NUMBERS = {
    SRC / "kbroker/common/errors.py": STAGE / "kbroker/common/_errors.pxd",
    SRC / "kbroker/protocol/batch_format.py": STAGE / "kbroker/protocol/_batch_format.pxd",
    SRC / "kbroker/protocol/compression.py": STAGE / "kbroker/protocol/_compression_type.pxd",
}
TRACE = os.environ.get("KBROKER_LINETRACE") == "1"  # coverage build
BOUNDS = os.environ.get("KBROKER_BOUNDS") == "1"  # checked build: every index, every division
SANITIZE = os.environ.get("KBROKER_SANITIZE", "")  # "address,undefined" or "thread"
BATCH = 40  # modules translated by one set of processes


def module_path(source: Path) -> Path:
    """Return the path of a module: kbroker/_core/x for src/_core/x.pyx, kbroker/log/_y for src/kbroker/log/_y.pyx."""
    inside = source.relative_to(SRC).with_suffix("")
    return inside if inside.parts[0] == "kbroker" else "kbroker" / inside


def inside_source(pattern: str) -> list[Path]:
    """Return the files below src that match `pattern`, without those behind the link src/kbroker/_core."""
    link = SRC / "kbroker" / "_core"
    return sorted(p for p in SRC.rglob(pattern) if link not in p.parents)


SOURCES = inside_source("*.pyx")
PXDS = inside_source("*.pxd")
HEADERS = inside_source("*.h")
HEADER_NAME = re.compile(r'["/]([\w.]+\.h)"')

if sys.platform == "win32":
    COMPILE_ARGS = ["/std:c++17", "/O2"]
    LINK_ARGS: list[str] = []
    SMALLER = ["/O1"]
else:
    COMPILE_ARGS = ["-std=c++17", "-O2", "-g1", "-fno-exceptions", "-ffp-contract=off", "-fvisibility=hidden"]
    COMPILE_ARGS += ["-Wno-unused-function"]
    LINK_ARGS = []
    SMALLER = ["-Os"] if not SANITIZE else []
    if SANITIZE:
        COMPILE_ARGS = ["-std=c++17", "-O1", "-g", "-fno-omit-frame-pointer", f"-fsanitize={SANITIZE}"]
        LINK_ARGS = [f"-fsanitize={SANITIZE}"]

# Modules compiled for size: a broker runs them at its start, for a new connection or for Python alone.
SMALL = {
    f"kbroker/{name}"
    for name in (
        "_core/metrics/metric_config",
        "_core/metrics/sensor",
        "log/_flusher",
        "log/_partition_log",
        "log/_recovery",
        "log/_retention",
        "network/_acceptor",
        "network/connections/_connection_quotas",
        "network/transport/_security",
        "handlers/_native_apis",
        "quota/_client_quotas",
        "quota/_counter_metrics",
    )
}

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
        write_message_tables()
        for ext in self.extensions:
            ext.depends = [] if ext.name == SHARED else dependencies(ext.sources[0])
        translate(self.extensions)
        if not self.parallel:
            self.parallel = os.cpu_count() or 1
        super().build_extensions()

    def build_extension(self, ext: Extension) -> None:
        """Compile an extension, or copy the kept one: an editable install builds in a new folder each time."""
        built = Path(self.get_ext_fullpath(ext.name))
        kept = KEPT / build_key(self.compiler) / built.name.replace(ext.name.rpartition(".")[2], ext.name, 1)
        if self.force or newer_group([*ext.sources, *ext.depends, __file__], str(kept), "newer"):
            super().build_extension(ext)
            kept.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(built, kept)
        else:
            built.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(kept, built)
        if not (self.editable_mode or self.inplace or SANITIZE):
            strip(built)


class build_public(build_py):
    """Leave .pxd files and headers out of a wheel, except those of `kbroker._core` for other Cython packages.

    An editable install keeps all of them, for the modules of the tests.
    """

    def find_data_files(self, package: str, src_dir: str) -> list[str]:
        files = super().find_data_files(package, src_dir)
        if self.editable_mode or package == "kbroker" or package.startswith("kbroker._core"):
            return files
        return [name for name in files if not name.endswith((".pxd", ".h"))]


def strip(built: Path) -> None:
    """Remove symbols and line tables: an editable install keeps them for perf and gdb, and they double a wheel."""
    tool = shutil.which("strip") if sys.platform.startswith("linux") else None
    if tool is not None:
        subprocess.run([tool, "--strip-all", str(built)], check=True)


def translate(extensions: list[Extension]) -> None:
    """Replace the Cython sources of extensions by the C++ made from them.

    Cython's trees are cyclic, and to collect them takes half of its time. Without a collection a process grows by
    about 10 MB per module, so each batch has new processes.
    """
    gc.disable()
    if not TRACE:  # whose coverage names the files of src
        Context.find_pxd_file = find_pxd_file
    try:
        for first in range(0, len(extensions), BATCH):
            batch = extensions[first : first + BATCH]
            done = cythonize(
                batch,
                include_path=[str(STAGE)],
                build_dir=None if TRACE else "build/cython",
                compiler_directives=DIRECTIVES,
                shared_utility_qualified_name=SHARED,
                nthreads=translators(),
            )
            for ext, translated in zip(batch, done, strict=True):
                ext.sources = translated.sources
            gc.collect()  # without processes the trees are here
    finally:
        gc.enable()


def translators() -> int:
    """Return the number of processes that translate: one per core, or 0 without semaphores (no /dev/shm)."""
    if sys.platform == "win32":
        return 0
    try:
        multiprocessing.Lock()
    except (ImportError, OSError):
        return 0
    return os.cpu_count() or 1


def build_key(compiler: object) -> str:
    """Return a hash of the compiler and its options, so that objects built with others are not reused."""
    options = [*getattr(compiler, "compiler_so_cxx", ()), *COMPILE_ARGS, *LINK_ARGS, str(TRACE), str(BOUNDS)]
    return hashlib.sha256("\0".join(options).encode()).hexdigest()[:16]


class StagedContext(Context):
    """Find .pxd files in `build/pxd` alone, without those of Cython."""

    def find_pxd_file(self, qualified_name: str, *args: object, **options: object) -> str | None:
        return staged(qualified_name)


def find_pxd_file(
    context: Context,
    qualified_name: str,
    *args: object,
    by_cython: Callable[..., str | None] = Context.find_pxd_file,
    **options: object,
) -> str | None:
    """Return the .pxd file of a module, in `build/pxd` alone for kbroker's.

    Cython's own search reads each folder of `sys.path` for each cimport of each module: a quarter of its time.
    """
    if qualified_name.partition(".")[0] == "kbroker":
        return staged(qualified_name)
    return by_cython(context, qualified_name, *args, **options)


@functools.cache
def staged(module: str) -> str | None:
    """Return the path of a module's .pxd in `build/pxd`."""
    path = f"{STAGE}/{module.replace('.', '/')}.pxd"
    return path if os.path.exists(path) else None


def dependencies(source: str) -> list[str]:
    """List the .pxd files and headers that an extension depends on, directly or through other .pxd files.

    Files in `build/pxd` keep the time of their sources, so that an edit recompiles only its dependents.
    """
    tree = create_dependency_tree(StagedContext([str(STAGE)], Options.get_directive_defaults(), cpp=True), quiet=True)
    used = set(tree.all_dependencies(source)) - {source}
    texts = [Path(name).read_text(encoding="utf-8") for name in (source, *used) if Path(name).exists()]
    return sorted(used | headers_of(texts))


def headers_of(texts: Iterable[str]) -> set[str]:
    """Return this project's headers that these sources include, directly or through other headers."""
    by_name = {header.name: header for header in HEADERS}
    found: set[str] = set()
    waiting = list(texts)
    while waiting:
        for name in HEADER_NAME.findall(waiting.pop()):
            header = by_name.get(name)
            if header is not None and header.as_posix() not in found:
                found.add(header.as_posix())
                waiting.append(header.read_text(encoding="utf-8"))
    return found


def stage_pxd_tree() -> None:
    """Copy all .pxd files into a tree of their packages, since Cython finds modules by directory name."""
    keep = set()
    for pxd in PXDS:
        target = (STAGE / module_path(pxd)).with_suffix(".pxd")
        target.parent.mkdir(parents=True, exist_ok=True)
        if not target.exists() or target.read_bytes() != pxd.read_bytes():
            shutil.copy2(pxd, target)
        keep.add(target)
    for source, target in SHARED_NUMBERS.items():
        numbers = "".join(f"    {name} = {number}\n" for name, number in numbers_of(source).items())
        write_changed(target, f'"""Made from {source.as_posix()} by setup.py."""\n\ncdef enum:\n{numbers}')
        keep.add(target)
    for folder in [p for p in STAGE.rglob("*") if p.is_dir()]:
        (folder / "__init__.pxd").touch()
        keep.add(folder / "__init__.pxd")
    for stale in [p for p in STAGE.rglob("*.pxd") if p not in keep]:
        stale.unlink()


def numbers_of(source: Path) -> dict[str, int]:
    """Map each capital name that a Python file or a class in it assigns to its number, or the first of its tuple."""
    module = ast.parse(source.read_text(encoding="utf-8")).body
    found = {}
    for statement in [*module, *(s for c in module if isinstance(c, ast.ClassDef) for s in c.body)]:
        if (
            isinstance(statement, ast.Assign)
            and isinstance(name := statement.targets[0], ast.Name)
            and name.id.isupper()
        ):
            value = ast.literal_eval(statement.value)
            found[name.id] = int(value[0] if isinstance(value, tuple) else value)
    return found


def write_message_tables() -> None:
    """Turn messages/*.json into a header for protocol/_encoder.pyx, so that a starting broker parses no JSON.

    The bytes are those of `marshal` in the Python that builds. An unchanged header keeps its time.
    """
    lines = ["#pragma once", "struct MessageTable { const char *file; const unsigned char *bytes; int size; };"]
    rows = []
    for number, path in enumerate(sorted(MESSAGES.glob("*.json"))):
        table = marshal.dumps(interned(json.loads(path.read_text(encoding="utf-8"))))
        lines.append(f"static const unsigned char TABLE_{number}[] = {{{','.join(map(str, table))}}};")
        rows.append(f'{{"{path.name}", TABLE_{number}, {len(table)}}}')
    lines += [f"static const MessageTable MESSAGE_TABLES[] = {{{', '.join(rows)}}};"]
    lines += [f"enum {{ MESSAGE_TABLE_COUNT = {len(rows)} }};", ""]
    header = TABLES / "message_tables.h"
    write_changed(header, "\n".join(lines))
    HEADERS.append(header)


def write_changed(path: Path, text: str) -> None:
    """Write a file unless it already holds `text`: its time decides which modules are compiled again."""
    if not path.exists() or path.read_text(encoding="ascii") != text:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="ascii")


def interned(value: object) -> object:
    """Give equal strings one identity, so that marshal writes each once."""
    if isinstance(value, str):
        return sys.intern(value)
    if isinstance(value, list):
        return [interned(item) for item in value]
    if isinstance(value, dict):
        return {interned(key): interned(item) for key, item in value.items()}
    return value


def extension(source: Path) -> Extension:
    """Return the extension of a .pyx file with its compiler options."""
    options = [*COMPILE_ARGS, *SMALLER] if module_path(source).as_posix() in SMALL else COMPILE_ARGS
    return Extension(
        ".".join(module_path(source).parts),
        [source.as_posix()],
        include_dirs=["src", "src/_core", TABLES.as_posix()],
        language="c++",
        extra_compile_args=options,
        extra_link_args=LINK_ARGS,
        define_macros=[("CYTHON_TRACE_NOGIL", "1")] * TRACE,
        depends=[path.as_posix() for path in (*PXDS, *HEADERS)],  # an sdist has all of them, a wheel does not
    )


def shared_utility() -> Extension:
    """Return the extension of the shared utility code, whose C source Cython writes."""
    arguments = [option for option in COMPILE_ARGS if "std" not in option]
    return Extension(SHARED, ["build/_cython_utility.c"], extra_compile_args=arguments, extra_link_args=LINK_ARGS)


setup(
    cmdclass={"build_ext": build_core, "build_py": build_public},
    packages=[
        *find_packages("src", include=["kbroker", "kbroker.*"], exclude=["kbroker._core", "kbroker._core.*"]),
        *(f"kbroker.{name}" for name in find_packages("src", include=["_core", "_core.*"])),
    ],
    py_modules=["pyspark_kbroker"],  # Spark finds the data source by this name
    package_dir={"": "src", "kbroker": "src/kbroker", "kbroker._core": "src/_core"},
    package_data={"": ["py.typed", "*.pxd", "*.pyi", "*.h", "*.json", "*.properties", "templates/*", "assets/*"]},
    include_package_data=False,
    ext_modules=[*(extension(p) for p in SOURCES), shared_utility()],
    options={"editable_wheel": {"mode": "strict"}},
)

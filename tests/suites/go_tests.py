"""Tests of Go modules, which are fetched by `go mod download` and run with a result for each test."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path


def fetched(module: str, folder: Path) -> Path:
    """Return a writable copy of a module, which is fetched once."""
    if not folder.exists():
        command = ["go", "mod", "download", "-json", module]
        done = subprocess.run(command, cwd=folder.parent, check=True, capture_output=True, text=True)
        shutil.copytree(json.loads(done.stdout)["Dir"], folder)
        for path in (folder, *folder.rglob("*")):
            path.chmod(path.stat().st_mode | 0o200)
    return folder


def run(folder: Path, log: Path, arguments: Sequence[str], environment: Mapping[str, str]) -> dict[str, str]:
    """Run `go test` with arguments, and return "pass", "fail" or "skip" by name of test."""
    results: dict[str, str] = {}
    with log.open("w", encoding="utf-8") as output:
        process = subprocess.Popen(
            ["go", "test", "-json", "-count=1", "-timeout=30m", *arguments],
            cwd=folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
            env={**os.environ, "GOFLAGS": "-mod=mod", "GOWORK": "off", **environment},
        )
        assert process.stdout is not None
        for line in process.stdout:
            event = json.loads(line) if line.startswith("{") else {"Output": line}
            output.write(event.get("Output", ""))
            if "Test" in event and event["Action"] in ("pass", "fail", "skip"):
                results[event["Test"]] = event["Action"]
                print(f"  {event['Action']} {event['Test']} {event.get('Elapsed', 0):.1f} s", flush=True)
            elif event.get("Action") == "fail" and "Test" not in event and "fail" not in results.values():
                results[arguments[-1]] = "fail"  # the package does not compile, or its process has ended early
        process.wait()
    with contextlib.suppress(ProcessLookupError):  # a panic leaves brokers running
        os.killpg(process.pid, signal.SIGTERM)
    return results


def judged(results: Mapping[str, str], reasons: Mapping[str, str]) -> int:
    """Print the numbers, the skipped tests and the reason for each failure; return 1 if a failure has no reason."""
    failed = sorted(name for name, result in results.items() if result == "fail")
    print({kind: sum(result == kind for result in results.values()) for kind in ("pass", "fail", "skip")})
    print("skipped:", sorted(name for name, result in results.items() if result == "skip"))
    for name in failed:
        print(f"{name}: {reasons.get(name, 'UNEXPECTED')}")
    return int(not results or any(name not in reasons for name in failed))

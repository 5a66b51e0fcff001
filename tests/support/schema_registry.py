"""Schema Registry for tests: Apicurio, which serves Confluent's API besides its own, with its data in memory."""

import fcntl
import json
import os
import shutil
import subprocess
import tarfile
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.support import need
from tests.support.broker import wait_for
from tests.support.kafka.jars import QUICK_START, ROOT, ClassArchive, program, run_maven
from tests.support.ports import free_run

VERSION = "2.6.13.Final"
ARTIFACT = "apicurio-registry-app"
BUILD = ROOT / "build" / "apicurio"
START_TIMEOUT_S = 120


def _folder() -> Path:
    """Return the folder of the registry, which is fetched from Maven Central once."""
    need.program("java", "mvn")
    folder = BUILD / VERSION
    BUILD.mkdir(parents=True, exist_ok=True)
    with (BUILD / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            fresh = BUILD / "fresh"
            shutil.rmtree(fresh, ignore_errors=True)
            artifact = f"-Dartifact=io.apicurio:{ARTIFACT}:{VERSION}:tar.gz:all"
            done = run_maven("dependency:copy", f"-DoutputDirectory={fresh}", artifact)
            if done.returncode != 0:
                need.lack(f"Maven did not fetch Apicurio: {(done.stdout + done.stderr)[-500:]}")
            with tarfile.open(next(fresh.glob("*.tar.gz"))) as archive:
                archive.extractall(fresh / "unpacked", filter="data")
            (fresh / "unpacked").rename(folder)
            shutil.rmtree(fresh)
    return folder


class Apicurio:
    """Running registry. ``url``: Confluent's API; ``own_url``: Apicurio's API."""

    def __init__(self, scratch: Path) -> None:
        folder, port = _folder(), free_run(1)
        base = f"http://127.0.0.1:{port}/apis"
        self.url, self.own_url = f"{base}/ccompat/v7", f"{base}/registry/v2"
        self._log = (scratch / "apicurio.log").open("wb")
        jar = folder / f"{ARTIFACT}-{VERSION}-runner.jar"
        self._archive, self._new_archive = ClassArchive(ARTIFACT, f"{VERSION} {jar}"), scratch / "classes.jsa"
        options = ("-Xmx192m", *QUICK_START, *self._archive.options(self._new_archive))
        self._process = subprocess.Popen(
            [program("java"), *options, "-jar", str(jar)],
            env={**os.environ, "QUARKUS_HTTP_PORT": str(port), "QUARKUS_HTTP_HOST": "127.0.0.1"},
            stdout=self._log,
            stderr=subprocess.STDOUT,
        )
        wait_for("Apicurio serves", self._is_ready, seconds=START_TIMEOUT_S, every=0.1)

    def _is_ready(self) -> bool:
        assert self._process.poll() is None, Path(self._log.name).read_text(encoding="utf-8")[-2000:]
        try:
            return bool(self.request("GET", f"{self.url}/subjects") is not None)
        except OSError:
            return False

    def request(self, method: str, url: str, body: Any = None, **headers: str) -> Any:
        """Return the JSON response to a request."""
        data = None if body is None else body.encode() if isinstance(body, str) else json.dumps(body).encode()
        names = {"Content-Type": "application/json", **{k.replace("_", "-"): v for k, v in headers.items()}}
        with urllib.request.urlopen(urllib.request.Request(url, data, names, method=method), timeout=30) as response:
            return json.load(response)

    def register(self, subject: str, kind: str, schema: str, references: Sequence[dict[str, Any]] = ()) -> int:
        """Register a schema through Confluent's API; return its id."""
        body = {"schemaType": kind, "schema": schema, "references": list(references)}
        return int(self.request("POST", f"{self.url}/subjects/{subject}/versions", body)["id"])

    def close(self) -> None:
        """Stop the registry, which writes its archive of classes if that is due."""
        if self._archive.is_due():
            self._process.terminate()
            self._process.wait(60)
            self._archive.keep(self._new_archive)
        self._process.kill()
        self._process.wait()
        self._log.close()

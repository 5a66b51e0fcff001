"""aiokafka's tests against this broker, fetched and run in a folder outside the repository.

    python tests/suites/aiokafka.py FOLDER [--run EXPRESSION] [--source REPOSITORY]

aiokafka_docker.py replaces Docker's client, so that a container of Kafka's image is a broker. FAILS has the tests that
may fail, with reasons; the exit status is 1 if another test fails. The distribution has no tests, so they are fetched
from the repository, or from a clone that --source names. Needs git, Java with keytool, and Maven.
"""

import argparse
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1]))

from tests.support.broker import SERVE  # noqa: E402
from tests.support.kafka import java_command  # noqa: E402

SOURCE, VERSION = "https://github.com/aio-libs/aiokafka.git", "0.14.0"
PACKAGES = (f"aiokafka=={VERSION}", "pytest>=8", "pytest-asyncio", "pytest-timeout", "pytest-mock", "cramjam")
FAILS: dict[str, str] = {}
#: The name decides which tests run; it is the newest that the tests know.
IMAGE = "aiolibs/kafka:2.13_2.8.1"


def fetched(folder: Path, source: str) -> Path:
    """Return a fresh copy of the tests, beside an environment with the released client."""
    clone, copy = folder / "clone", folder / "aiokafka"
    if not clone.exists():
        folder.mkdir(parents=True, exist_ok=True)
        subprocess.run(["git", "clone", "-q", "--depth", "1", "--branch", f"v{VERSION}", source, clone], check=True)
        subprocess.run([sys.executable, "-m", "venv", folder / "venv"], check=True)
        subprocess.run([folder / "venv" / "bin" / "pip", "install", "-q", *PACKAGES], check=True)
    shutil.rmtree(copy, ignore_errors=True)
    copy.mkdir()
    shutil.copytree(clone / "tests", copy / "tests")  # without the client's own sources, which are not compiled
    shutil.copy(clone / "gen-ssl-certs.sh", copy)
    shutil.copy(HERE / "aiokafka_docker.py", copy / "docker.py")
    ktutil = folder / "bin" / "ktutil"  # a fixture of every test writes a Kerberos key
    ktutil.parent.mkdir(exist_ok=True)
    ktutil.write_text("#!/bin/sh\n")
    ktutil.chmod(0o755)
    return copy


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--run", default="not gssapi", help="expression of test names, as for `pytest -k`")
    parser.add_argument("--source", default=SOURCE)
    chosen = parser.parse_args()
    folder: Path = chosen.folder.resolve()
    source = fetched(folder, chosen.source)
    environment = {
        **os.environ,
        "PATH": f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}",
        "KBROKER_SERVE": shlex.join([sys.executable, *SERVE]),
        "KAFKA_ACLS": shlex.join(java_command("org.apache.kafka.tools.AclCommand")),
        "KAFKA_CONFIGS": shlex.join(java_command("kafka.admin.ConfigCommand")),
    }
    options = ["-q", "-p", "no:cacheprovider", "-o", "asyncio_mode=auto", "-W", "ignore", "--tb=short", "-rfEs"]
    choice = ["--timeout=180", "-k", chosen.run, "--docker-image", IMAGE, "--no-pull", "tests"]
    done = subprocess.run(
        [folder / "venv" / "bin" / "python", "-m", "pytest", *options, *choice],
        cwd=source,
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    (folder / "aiokafka.log").write_text(done.stdout)
    summary = done.stdout.rpartition("short test summary info")[2]
    print(summary)
    failed = re.findall(r"^(?:FAILED|ERROR) (?:\S+::)?(\S+)", summary, re.MULTILINE)
    for name in failed:
        print(f"{name}: {FAILS.get(name, 'UNEXPECTED')}")
    return int(not summary or any(name not in FAILS for name in failed))


if __name__ == "__main__":
    sys.exit(main())

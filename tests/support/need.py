"""Checks of prerequisites: a missing program skips a test with the reason, or fails it if KBROKER_REQUIRE_ALL=1."""

import os
import shutil
from typing import NoReturn

import pytest

PACKAGES = {
    "java": "openjdk-17-jre-headless",
    "javac": "openjdk-17-jdk-headless",
    "mvn": "maven",
    "node": "nodejs",
    "npm": "npm",
    "go": "golang",
    "kcat": "kcat",
    "chromedriver": "chromium-driver",
    "chromium": "chromium",
    "curl": "curl",
    "gcc": "gcc",
    "busybox": "busybox-static",
    "strip": "binutils",
    "prlimit": "util-linux",
}


def lack(reason: str) -> NoReturn:
    """Skip the running test because of a missing prerequisite, or fail it if no test may be skipped."""
    if os.environ.get("KBROKER_REQUIRE_ALL") == "1":
        pytest.fail(f"{reason} (KBROKER_REQUIRE_ALL=1 allows no skip)", pytrace=False)
    pytest.skip(reason)


def program(*names: str) -> None:
    """Require programs on the PATH."""
    for name in names:
        if shutil.which(name) is None:
            lack(f"needs {name}; on Debian: apt-get install {PACKAGES.get(name, name)}")


def spark() -> None:
    """Require the packages and the Java version that Spark requires."""
    from kbroker.spark.errors import PipelineError  # not at the top: tests of wheels have no Spark
    from kbroker.spark.setup.session import require_packages, require_spark

    try:
        require_packages()
        require_spark()
    except PipelineError as error:
        lack(str(error))


def kafka_tools() -> None:
    """Require the programs that Apache Kafka's command line tools need."""
    program("java", "javac", "mvn")

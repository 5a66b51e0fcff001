"""Checks for tools of the machine: a missing one skips a test by name, or fails it under KBROKER_REQUIRE_ALL=1."""

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
    """Skip the running test because the machine lacks something, or fail it where no test may be skipped."""
    if os.environ.get("KBROKER_REQUIRE_ALL") == "1":
        pytest.fail(f"{reason} (KBROKER_REQUIRE_ALL=1 allows no skip)", pytrace=False)
    pytest.skip(reason)


def program(*names: str) -> None:
    """Require programs on the PATH."""
    for name in names:
        if shutil.which(name) is None:
            lack(f"needs {name}; on Debian: apt-get install {PACKAGES.get(name, name)}")


def spark() -> None:
    """Require the packages and the Java that Spark runs on."""
    from kbroker.spark.errors import PipelineError  # not at the top: tests of wheels have no Spark
    from kbroker.spark.setup.session import require_packages, require_spark

    try:
        require_packages()
        require_spark()
    except PipelineError as error:
        lack(str(error))


def kafka_tools() -> None:
    """Require what Apache Kafka's command line tools need."""
    program("java", "javac", "mvn")

"""Checks of prerequisites: a missing program skips a test with the reason, or fails it if KBROKER_REQUIRE_ALL=1."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

import pytest

PACKAGES = {
    "java": "openjdk-17-jre-headless", "javac": "openjdk-17-jdk-headless", "mvn": "maven", "node": "nodejs",
    "npm": "npm", "go": "golang", "kcat": "kcat", "chromedriver": "chromium-driver", "chromium": "chromium",
    "curl": "curl", "gcc": "gcc", "busybox": "busybox-static", "strip": "binutils", "prlimit": "util-linux",
}  # fmt: skip
OURS = ("bench", "kbroker", "tests")


def lack(reason: str) -> NoReturn:
    """Skip the running test because of a missing prerequisite, or fail it if no test may be skipped."""
    if os.environ.get("KBROKER_REQUIRE_ALL") == "1":
        pytest.fail(f"{reason} (KBROKER_REQUIRE_ALL=1 allows no skip)", pytrace=False)
    pytest.skip(reason)


def skip_without_package(report: pytest.CollectReport) -> None:
    """Skip a module of tests that imports a package that is not installed, as in the tests of wheels."""
    call: pytest.CallInfo[object] | None = getattr(report, "call", None)
    error = call.excinfo.value.__cause__ if call is not None and call.excinfo is not None else None
    if not isinstance(error, ModuleNotFoundError) or os.environ.get("KBROKER_REQUIRE_ALL") == "1":
        return
    package = str(error.name).partition(".")[0]
    if package not in OURS:
        report.outcome, report.longrepr = "skipped", (report.fspath, 1, f"Skipped: needs the package {package}")


def program(*names: str) -> None:
    """Require programs on the PATH."""
    for name in names:
        if shutil.which(name) is None:
            lack(f"needs {name}; on Debian: apt-get install {PACKAGES.get(name, name)}")


def root(why: str) -> None:
    """Skip for users other than root, even where no other skip is allowed: no installation can replace root."""
    if os.geteuid() != 0:
        pytest.skip(f"needs root {why}")


@contextmanager
def open_files(count: int) -> Iterator[None]:
    """Set the limit of open files, of this process and of the processes that it starts, within the block."""
    resource = pytest.importorskip("resource")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < count:
        lack(f"expected a hard limit of {count} open files or more, found {hard}")
    resource.setrlimit(resource.RLIMIT_NOFILE, (count, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


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

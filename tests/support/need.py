"""What a test needs from the machine: a missing tool skips it by name, or fails it under KBROKER_REQUIRE_ALL=1."""

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
    "prlimit": "util-linux",
}


def lack(reason: str) -> NoReturn:
    """End the running test because the machine lacks something: a skip, or a failure where nothing may be skipped."""
    if os.environ.get("KBROKER_REQUIRE_ALL") == "1":
        pytest.fail(f"{reason} (KBROKER_REQUIRE_ALL=1 allows no skip)", pytrace=False)
    pytest.skip(reason)


def program(*names: str) -> None:
    """Demand programs on the PATH."""
    for name in names:
        if shutil.which(name) is None:
            lack(f"needs {name}; on Debian: apt-get install {PACKAGES.get(name, name)}")

"""`tests/support/need.py`: a test without its tool is skipped with a reason, or fails where skips are forbidden."""

from collections.abc import Callable
from importlib import import_module
from pathlib import Path

import pytest

from tests.spark.standalone import Standalone
from tests.support import need


@pytest.fixture(autouse=True)
def _no_programs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)


@pytest.mark.parametrize("must", [False, True])
@pytest.mark.parametrize(
    ("demand", "reason"),
    [
        (lambda folder: need.program("kcat"), "needs kcat; on Debian: apt-get install kcat"),
        (lambda folder: need.spark(), "Spark needs Java, and there is none on the PATH: "),
        (Standalone, "Spark needs Java, and there is none on the PATH: "),
    ],
)
def test_a_missing_tool_is_named(
    must: bool, demand: Callable[[Path], object], reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("pyspark")
    monkeypatch.setenv("KBROKER_REQUIRE_ALL", "1" if must else "")
    expected: type[BaseException] = pytest.fail.Exception if must else pytest.skip.Exception
    with pytest.raises(expected) as caught:
        demand(tmp_path / "cluster")
    assert str(caught.value).startswith(reason)
    assert str(caught.value).endswith(" (KBROKER_REQUIRE_ALL=1 allows no skip)") == must


@pytest.mark.parametrize("must", [False, True])
@pytest.mark.parametrize(("package", "is_skipped"), [("no_such_package", True), ("kbroker", False)])
def test_a_module_of_tests_without_its_package(
    must: bool, package: str, is_skipped: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A module without its package is skipped by name, unless no skip is allowed or the package is kbroker."""

    def collect() -> None:
        try:
            import_module(f"{package}.nothing")
        except ModuleNotFoundError as error:
            raise pytest.Collector.CollectError from error

    monkeypatch.setenv("KBROKER_REQUIRE_ALL", "1" if must else "")
    report = pytest.CollectReport("test_x.py", "failed", "the traceback", None)
    report.call = pytest.CallInfo.from_call(collect, "collect")  # type: ignore[attr-defined]
    need.skip_without_package(report)
    assert report.skipped == (is_skipped and not must)
    assert report.failed != report.skipped
    if report.skipped:
        assert report.longrepr == ("test_x.py", 1, "Skipped: needs the package no_such_package")

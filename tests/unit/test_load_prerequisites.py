"""Prerequisites of `bench/loads/run.py`: checked before the first measurement, installed by the `bench` extra."""

import ast
import re
import sys
from pathlib import Path

import pytest

from bench.loads import breadth, coordination, run, share_groups
from bench.loads.prerequisites import missing

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def bare_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Remove the programs and the packages of the `bench` extra from the environment."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    for package in ("confluent_kafka", "matplotlib"):
        monkeypatch.setitem(sys.modules, package, None)


@pytest.mark.usefixtures("bare_machine")
def test_all_missing_prerequisites_are_listed_before_anything_is_measured(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(run, "Loads", None)  # a measurement would fail
    monkeypatch.setattr(sys, "argv", ["run.py", "--quick", "--plot", "picture"])
    assert run.main() == 1
    lines = capsys.readouterr().err.splitlines()
    names = ("a C compiler", "confluent-kafka", "matplotlib", "Java 17", "Maven", "Go")
    assert [line.startswith(f"bench/loads needs {name}") for line, name in zip(lines, names, strict=True)] == [True] * 6
    assert lines[1].endswith("(kafka, producer, transactions): pip install -r bench/requirements.txt")
    assert lines[3].endswith("openjdk-17-jre-headless; left out: kafka, transactions")


@pytest.mark.usefixtures("bare_machine")
@pytest.mark.parametrize("name", [*breadth.MEASURES, *coordination.MEASURES, *share_groups.MEASURES])
def test_measurements_beside_kafka_name_java(name: str) -> None:
    """Each measurement beside Apache Kafka is left out without Java and Maven, and that of TLS without openssl."""
    names = [lack.name for lack in missing([name]) if not lack.is_required]
    assert names == ["Java 17", "Maven", *(["openssl"] if name == "encrypted" else [])]


@pytest.mark.usefixtures("bare_machine")
def test_only_the_measures_asked_for_count() -> None:
    assert [lack.name for lack in missing(["start"])] == ["a C compiler"]
    assert [lack.name for lack in missing(["another build"])] == ["a C compiler", "confluent-kafka"]


def test_java_home_counts(bare_machine: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "jdk" / "bin").mkdir(parents=True)
    (tmp_path / "jdk" / "bin" / "java").touch()
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "jdk"))
    assert "Java 17" not in [lack.name for lack in missing(["kafka"])]


def imported_packages(start: Path) -> set[str]:
    """Return the foreign packages that a program imports, directly or through the project's modules.

    A package whose ImportError is caught is optional and not included.
    """
    seen, waiting, packages = set(), [start], set()
    while waiting:
        file = waiting.pop()
        if file in seen:
            continue
        seen.add(file)
        tree = ast.parse(file.read_text(encoding="utf-8"))
        optional = {
            node
            for attempt in ast.walk(tree)
            if isinstance(attempt, ast.Try)
            and any(each.type and "ImportError" in ast.unparse(each.type) for each in attempt.handlers)
            for node in attempt.body
        }
        for node in ast.walk(tree):
            if node in optional:
                continue
            if isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
                names = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
            elif isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            else:
                continue
            for name in names:
                place = ROOT.joinpath(*name.split("."))
                waiting += [found for found in (place.with_suffix(".py"), place / "__init__.py") if found.exists()]
            packages.add(names[0].partition(".")[0])
    return (
        packages - set(sys.stdlib_module_names) - {"bench", "tests", "kbroker", "typing_extensions"}
    )  # the last for type checkers only


def test_the_bench_extra_has_what_the_loads_import() -> None:
    """Packages that run.py and its programs import are in the ranges of pyproject.toml and the pinned versions."""
    programs = ("run.py", "rdkafka.py", "plot.py")
    needed = {
        name.replace("_", "-") for file in programs for name in imported_packages(ROOT / "bench" / "loads" / file)
    }
    assert needed == {"confluent-kafka", "matplotlib"}
    (extra,) = re.findall(r"^bench = \[\n(.*?)^\]", (ROOT / "pyproject.toml").read_text(encoding="utf-8"), re.M | re.S)
    pinned = (ROOT / "bench" / "requirements.txt").read_text(encoding="utf-8").splitlines()
    for lines in (extra.splitlines(), pinned):
        assert needed <= {re.split(r"[><=;]", line.strip(' "'))[0] for line in lines}

"""Installation without the extra `spark`, as in the tests of wheels: fast tests and the command line work."""

import os
import sys
from pathlib import Path

from tests.support.broker import run_to_end

ROOT = Path(__file__).resolve().parents[2]
HIDE = "import sys\nfor name in ('pyspark', 'pyarrow', 'pandas', 'py4j', 'google.protobuf'): sys.modules[name] = None\n"


def run(program: str) -> str:
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, sys.path)])}
    command = [sys.executable, "-c", HIDE + program]
    return run_to_end(command, seconds=250, cwd=ROOT, env=env)


def test_fast_tests_of_the_pipeline() -> None:
    """Tests in `unit` and `property` over kbroker.spark pass without Spark, Arrow and pandas."""
    files = [
        str(file.relative_to(ROOT))
        for folder in ("unit", "property")
        for file in sorted((ROOT / "tests" / folder).glob("test_*.py"))
        if "kbroker.spark" in file.read_text(encoding="utf-8")
    ]
    assert files
    run(f"import pytest; sys.exit(pytest.main(['-q', '-p', 'no:cacheprovider', *{files!r}]))")


def test_a_command_names_the_missing_package() -> None:
    """A command of the pipeline ends with one line that names the missing package and the extra."""
    program = """
from click.testing import CliRunner
from kbroker.cli import cli
for words in (["usage", "T"], ["compact", "T"], ["ingest", "T", "a.log"]):
    result = CliRunner().invoke(cli, ["pipeline", *words], prog_name="kbroker")
    print(result.exit_code, result.stderr, end="")
"""
    found = run(program).splitlines()
    assert [line.partition(" kbroker: the pipeline needs py")[0] for line in found] == ["1"] * 3, found
    assert all(line.endswith('which is not installed: pip install "kbroker[spark]"') for line in found)


def test_help_of_every_command() -> None:
    """`kbroker pipeline ... --help` does not import Spark."""
    program = """
from click.testing import CliRunner
from kbroker.cli import cli
pipeline = cli.get_command(None, "pipeline")
for name in sorted(pipeline.commands):
    result = CliRunner().invoke(cli, ["pipeline", name, "--help"], prog_name="kbroker")
    assert result.exit_code == 0, result.output
    print(name)
"""
    assert "jars" in run(program).split()


def test_the_lag_of_a_local_checkpoint_needs_no_package(tmp_path: Path) -> None:
    """`kbroker pipeline lag` reads a local folder, here one without a checkpoint, without further packages."""
    program = f"""
from click.testing import CliRunner
from kbroker.cli import cli
result = CliRunner().invoke(cli, ["pipeline", "lag", "--checkpoint", {str(tmp_path / "none")!r}], prog_name="kbroker")
print(result.exit_code, result.stderr, end="")
"""
    found = run(program)
    assert "none" in found
    assert "pyarrow" not in found

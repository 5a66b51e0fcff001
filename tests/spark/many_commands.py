"""A program for the tests: commands of the pipeline, one after the other, in one Spark session.

python -m tests.spark.many_commands < [[WORD, ...], ...] as JSON > [{"status": 0, "out": "", "err": ""}, ...]

The session is that of the first command; the others use it, whatever they say of a master.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from click.testing import CliRunner

from kbroker.cli import cli, pipeline_jobs, pipeline_session, pipeline_views, pipeline_whatif

_kept: dict[str, Any] = {}


def _session(common: dict[str, Any]) -> Any:
    if "session" not in _kept:
        spark = pipeline_session.session(common)
        _kept["session"], _kept["stop"] = spark, spark.stop
        spark.stop = lambda: None  # type: ignore[method-assign]
    return _kept["session"]


def main() -> None:
    for module in (pipeline_jobs, pipeline_views, pipeline_whatif):
        module.session = _session  # type: ignore[attr-defined]
    results = []
    for words in json.load(sys.stdin):
        done = CliRunner().invoke(cli, ["pipeline", *words])
        print(f"{words[0]}: {done.exit_code}: {done.stderr}", file=sys.stderr, flush=True)
        results.append({"status": done.exit_code, "out": done.stdout, "err": done.stderr})
    if "stop" in _kept:
        _kept["stop"]()
    json.dump(results, sys.stdout)


if __name__ == "__main__":
    main()

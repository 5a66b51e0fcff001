"""Kafka's command line tools for tests."""

import subprocess
from pathlib import Path
from typing import Any

from tests.support import need
from tests.support.kafka import tool_server

TOOLS = "org.apache.kafka.tools."


def run_tool(main: str, *arguments: object, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run a tool as `tool_server.run_tool` does; report a missing prerequisite of the test if tools cannot run."""
    need.kafka_tools()
    return tool_server.run_tool(main, *arguments, **options)


class Tools:
    """Kafka's tools against one broker.

    Args:
        bootstrap: address of the broker.
        config: file with properties of the clients, passed as --command-config.
    """

    def __init__(self, bootstrap: str, config: Path | None = None) -> None:
        self.bootstrap = bootstrap
        self._config = () if config is None else ("--command-config", config)

    def __call__(self, tool: str, *arguments: object, stdin: str = "", status: int | None = 0) -> str:
        """Return the standard output of a tool, with the standard error if the tool is expected to fail.

        Args:
            tool: a class, followed by its command if the command must be the first argument.
            status: the expected exit status; None for any.
        """
        done = run_tool(*tool.split(), "--bootstrap-server", self.bootstrap, *self._config, *arguments, stdin=stdin)
        printed = f"{' '.join(done.args)}: {done.returncode}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
        assert status is None or done.returncode == status, printed
        return done.stdout + (done.stderr if status else "")

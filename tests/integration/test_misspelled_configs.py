"""Suggestions for misspelled names of configs on the command line."""

from pathlib import Path

from click.testing import CliRunner, Result

from kbroker.broker import Broker
from kbroker.cli import cli


def test_a_misspelled_config_names_the_known_one(tmp_path: Path) -> None:
    """The suggestion follows the broker's error, or a warning if the broker accepts and ignores the config."""
    with Broker({"listeners": "PLAINTEXT://127.0.0.1:0", "kbroker.in.memory": True}) as broker:

        def run(*args: str) -> Result:
            return CliRunner().invoke(cli, args, env={"KBROKER_BOOTSTRAP": broker.bootstrap_servers})

        def failure(*args: str) -> str:
            found = run(*args)
            assert found.exit_code == 1
            assert "INVALID_CONFIG" in found.stderr
            return found.stderr.rpartition("Unknown topic config name: ")[2].rstrip()

        refused = "retention.mss; did you mean retention.ms?"
        assert failure("topics", "create", "t", "--config", "retention.mss=1") == refused
        assert run("topics", "create", "t", "--config", "retention.ms=1").stderr == ""
        assert failure("topics", "alter", "t", "--config", "retention.mss=1") == refused
        assert failure("configs", "alter", "topic", "t", "--set", "retention.mss=1") == refused
        file = tmp_path / "cluster.yaml"
        file.write_text("topics: [{name: t, configs: {retention.mss: 1}}, {name: new, configs: {retention.ms: 1}}]")
        assert failure("cluster", "diff", str(file)) == refused
        assert failure("cluster", "apply", "--yes", str(file)) == refused
        assert failure("configs", "alter", "topic", "t", "--set", "nix=1") == "nix"
        for resource, change, text in (
            (("broker", "default"), "num.partitions=3", "INVALID_REQUEST: all brokers: Cannot update these configs"),
            (("broker-logger", "1"), "kafka.nix=DEBUG", "INVALID_CONFIG: broker logger '1': Logger kafka.nix does not"),
        ):
            found = run("configs", "alter", *resource, "--set", change)
            assert (found.exit_code, found.stderr.startswith(f"kbroker: {text}")) == (1, True), found.stderr
        ignored = run("configs", "alter", "broker", "default", "--set", "num.io.thread=4")
        assert (ignored.exit_code, ignored.stdout) == (0, "altered broker default\n")
        assert ignored.stderr == (
            "num.io.thread is not a known config and has no effect; did you mean num.io.threads?\n"
        )
        known = run(
            "configs", "alter", "broker", "default", "--set", "num.io.threads=8", "--delete", "log.retention.ms"
        )
        assert (known.exit_code, known.stderr) == (0, "")
        wanted = ("--key", "retention.mss", "--key", "retention.ms", "--key", "nix")
        shown = run("configs", "describe", "topic", "t", *wanted)
        assert (shown.exit_code, "DYNAMIC_TOPIC_CONFIG" in shown.stdout) == (0, True)
        assert shown.stderr == "found no config nix\nfound no config retention.mss; did you mean retention.ms?\n"

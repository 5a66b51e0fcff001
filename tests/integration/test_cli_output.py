"""Output of every command with `--json`, validated against docs/reference/cli-output.schema.json."""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click
import pytest
from jsonschema import Draft202012Validator, ValidationError

from kbroker.cli import cli
from kbroker.client.cluster import Cluster
from kbroker.client.groups import Groups
from kbroker.client.transactional_producer import TransactionalProducer
from kbroker.log.checkpoints import random_uuid_text
from kbroker.testing import EmbeddedBroker
from tests.support import cli_output, need
from tests.support.cli import run

#: Commands that other tests validate: of Spark (the schemas give the outer shape only), of a Schema Registry, and of
#: delegation tokens.
ELSEWHERE = {"pipeline", "registry", "tokens"}
TOKEN = "a-token-of-this-test"
SETTINGS = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:ANONYMOUS",
    "kbroker.metrics.listener": "127.0.0.1:0",
    "kbroker.console.token": TOKEN,
}
PROPERTIES = """\
process.roles=broker,controller
node.id=1
listeners=PLAINTEXT://:9092,CONTROLLER://:9093
controller.listener.names=CONTROLLER
controller.quorum.bootstrap.servers=localhost:9093
log.dirs={folder}
"""

Check = Callable[..., list[Any]]


def with_json(group: click.Group = cli, words: str = "") -> Iterator[str]:
    """Yield the commands that have `--json`."""
    ctx = click.Context(group)
    for name in group.list_commands(ctx):
        command = group.get_command(ctx, name)
        if isinstance(command, click.Group):
            yield from with_json(command, f"{words}{name} ")
        elif command is not None and any("--json" in parameter.opts for parameter in command.params):
            yield words + name


def test_every_command_has_a_schema() -> None:
    """The schema is valid and has exactly the commands that print JSON."""
    Draft202012Validator.check_schema(cli_output.SCHEMA)
    assert set(with_json()) == cli_output.commands()


def test_the_schema_is_closed() -> None:
    """A field that the schema does not have is an error, so that a new field must be documented."""
    validator = Draft202012Validator({**cli_output.SCHEMA, "$ref": "#/$defs/users%20add"})
    validator.validate({"user": "a", "mechanism": "b", "iterations": 1})
    for wrong in ({"user": "a"}, {"user": "a", "mechanism": "b", "iterations": 1, "more": 1}):
        with pytest.raises(ValidationError):
            validator.validate(wrong)


def test_outputs(tmp_path: Path) -> None:
    """The output of each command is valid, with and without rows; every command is run."""
    done: set[str] = set()
    data, records = tmp_path / "data", tmp_path / "requests"
    settings = {**SETTINGS, "log.dirs": str(data), "kbroker.request.log.dir": str(records)}
    with EmbeddedBroker(settings) as broker:
        environment = {"KBROKER_BOOTSTRAP": broker.bootstrap_servers, "KBROKER_CONSOLE_TOKEN": TOKEN}

        def check(command: str, *args: str, status: int = 0, stdin: str = "") -> list[Any]:
            found = run(None, *command.split(), *args, "--json", env=environment, input=stdin)
            assert found.exit_code == status, (command, found.output)
            done.add(command)
            return cli_output.check(command, found.stdout)

        _lists(check)
        _topics(check, tmp_path)
        _groups(check, broker)
        _transactions(check, broker)
        _security(check, tmp_path)
        _quotas(check, tmp_path)
        _lists(check)
        for command in ("cluster describe", "cluster export", "xray", "top"):
            check(command)
        check("configs describe", "broker", "1", "--all")
        check("configs alter", "topic", "t", "--set", "retention.ms=5")
        check("copy", "t", "--to", broker.bootstrap_servers, "--prefix", "copy-of-")
        for command in ("perf produce", "perf consume", "perf latency"):
            check(command, "u", "-n", "5", "--client", "kbroker")
    check("requests tail", str(records))
    _files(check, tmp_path, data)
    done.add("pipeline jars")  # the next test
    assert {name for name in cli_output.commands() if name.split()[0] not in ELSEWHERE} <= done


def test_output_of_jars() -> None:
    need.program("mvn")
    found = run(None, "pipeline", "jars", "--json")
    assert found.exit_code == 0, found.output
    cli_output.check("pipeline jars", found.stdout)


def _lists(check: Check) -> None:
    for command in ("topics list", "topics describe", "topics export", "groups list", "groups describe", "users list",
                    "transactions list", "quotas list", "acls list", "transactions find-hanging"):  # fmt: skip
        check(command)


def _topics(check: Check, folder: Path) -> None:
    check("topics create", "t", "gone", "-p", "2", "--config", "retention.ms=90000")
    check("topics create", "t", "--if-not-exists")
    check("topics alter", "t", "--partitions", "3")
    check("topics delete", "gone")
    check("topics delete", "gone", "--if-exists")
    check("produce", "t", "-K", ":", "--header", "a=b", stdin="k:v\nk:w\n")
    assert check("consume", "t", "--from-beginning", "--max-messages", "2")
    assert check("consume", "t", "--last", "2", "--decode", "int32", "--decode-key", "text")
    file = folder / "cluster.yaml"
    file.write_text("topics:\n  - {name: t, partitions: 4}\n  - name: u\nusers:\n  - {user: carol}\n")
    for command in ("cluster diff", "cluster apply"):
        (found,) = check(command, str(file))
        assert found["changes"]


def _groups(check: Check, broker: EmbeddedBroker) -> None:
    with Cluster(broker.bootstrap_servers) as cluster:
        Groups(cluster).commit("g", {("t", 0): 0})
        check("groups reset", "g", "--all-topics", "--to-latest")
        check("groups describe", "g")
        for group_id in ("g", "absent"):
            check("groups delete", group_id, "--if-exists")
        Groups(cluster).commit("h", {("t", 0): 0})


def _transactions(check: Check, broker: EmbeddedBroker) -> None:
    with Cluster(broker.bootstrap_servers) as cluster:
        for name in ("x", "y"):
            with TransactionalProducer(cluster, name) as producer:
                producer.init_transactions()
                producer.begin_transaction()
                producer.send("t", b"value", partition=1)
                producer.flush()
                check("transactions describe", name)
                check("transactions list")
                (producers,) = check("transactions describe-producers", "t", "1")
                if name == "x":
                    check("transactions force-terminate", name)
                else:
                    start = next(row["start_offset"] for row in producers if row["start_offset"] is not None)
                    check("transactions abort", "t", "1", "--start-offset", str(start))


def _security(check: Check, folder: Path) -> None:
    check("acls add", "--topic", "t", "--operation", "read", "--allow", "User:a")
    check("acls explain", "User:a", "--topic", "t", "--operation", "read")
    check("acls explain", "User:b", "--topic", "t", "--operation", "read", status=1)
    check("acls remove", "--topic", "t", "--yes")
    check("acls add", "--topic", "t", "--prefixed", "--operation", "write", "--deny", "User:*")
    password = folder / "password"
    password.write_text("secret\n")
    check("users add", "a", "--password-file", str(password))
    check("users list")
    check("users remove", "a")


def _quotas(check: Check, folder: Path) -> None:
    entity = ("--user", "a")
    check("quotas set", "producer_byte_rate=5", "shadow.request_percentage=6.5", *entity)
    check("quotas describe", *entity)
    check("quotas resolve", *entity)
    check("quotas explain", *entity)
    file = folder / "quotas.yaml"
    file.write_text("- {entity: {user: a, client-id: null}, quotas: {consumer_byte_rate: 3}}\n")
    check("quotas diff", str(file))
    check("quotas apply", str(file))
    check("quotas shadow promote", *entity)
    check("quotas shadow drop", "--all")
    check("quotas remove", *entity)


def _files(check: Check, folder: Path, data: Path) -> None:
    """Run the commands that read the files of a stopped broker."""
    check("log dump", "--print-data-log", *(str(path) for path in data.glob("t-0/*.log")))
    check("log verify", str(data))
    check("storage check", str(data))
    copy, voters = shutil.copytree(data, folder / "copy"), f"101@127.0.0.1:9093:{random_uuid_text()}"
    check("storage separate", "--initial-controllers", voters, "--output", str(folder / "separated"), str(copy))
    for path in (data / "__cluster_metadata-0").glob("*.log"):
        path.unlink()
    check("log recover-metadata", str(data))
    config = folder / "server.properties"
    config.write_text(PROPERTIES.format(folder=folder / "new"))
    (made,) = check("storage random-uuid")
    check("storage info", "--config", str(config), status=1)
    check("storage format", "--config", str(config), "--cluster-id", made["id"], "--standalone")
    check("storage info", "--config", str(config))

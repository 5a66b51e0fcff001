"""`kbroker cluster export|diff|apply`, `topics export` and `topics create --from`: a cluster as its file lists it."""

import json
from pathlib import Path

import pytest
from click.testing import Result

from kbroker.client.cluster_file import cluster_document, read_cluster_file, yaml_text
from kbroker.client.document_file import DocumentError
from kbroker.client.users import DESCRIBE_USER_SCRAM_CREDENTIALS
from kbroker.testing import EmbeddedBroker
from tests.support import cli
from tests.support.fake_broker import FakeBroker
from tests.support.fixtures import fixture_of

AUTHORIZER = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:ANONYMOUS",
}
FILE = """\
topics:
  - {name: orders, partitions: 6, configs: {retention.ms: 86400000, cleanup.policy: compact}}
  - name: payments
acls:
  - {principal: User:alice, operation: read, resource: topic, name: orders, host: "::1"}
  - {principal: User:bob, operation: Write, resource: Topic, name: ord, pattern: prefixed, permission: Deny}
quotas:
  - {entity: {user: alice}, quotas: {producer_byte_rate: 1 MiB/s}}
users:
  - {user: alice}
"""
CREATED = """\
+ topic orders: 6 partitions
+ topic orders: retention.ms 86400000
+ topic orders: cleanup.policy compact
+ topic payments: partitions by default
+ acl DENY User:bob from *: WRITE on prefixed Topic ord
+ acl ALLOW User:alice from 0:0:0:0:0:0:0:1: READ on Topic orders
+ quota user alice: producer_byte_rate 1 MiB/s
"""
NO_USER = (
    "note: user alice has no SCRAM-SHA-512 credential; `kbroker users add alice --mechanism SCRAM-SHA-512` adds it\n"
)

broker = fixture_of(EmbeddedBroker, AUTHORIZER)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    file = tmp_path / "cluster.yaml"
    file.write_text(FILE)
    return file


def run(broker: EmbeddedBroker, *args: str, **settings: str) -> Result:
    return cli.run(None, *args, env={"KBROKER_BOOTSTRAP": broker.bootstrap_servers}, **settings)


def outcome(broker: EmbeddedBroker, *args: str, **settings: str) -> tuple[int, str, str]:
    result = run(broker, *args, **settings)
    return result.exit_code, result.stdout, result.stderr


def done(broker: EmbeddedBroker, *args: str) -> str:
    result = run(broker, *args)
    assert result.exit_code == 0, result.output
    return result.stdout


def test_a_cluster_becomes_what_its_file_lists(broker: EmbeddedBroker, path: Path) -> None:
    """`apply` makes the changes that `diff` shows; `export` prints the complete state, which can be applied."""
    assert outcome(broker, "cluster", "diff", str(path), "--exit-code") == (3, CREATED, NO_USER)
    assert outcome(broker, "cluster", "apply", str(path), "--dry-run") == (
        0,
        CREATED + "could make 7 changes\n",
        NO_USER,
    )
    assert outcome(broker, "cluster", "apply", str(path)) == (0, CREATED + "made 7 changes\n", NO_USER)
    assert outcome(broker, "cluster", "diff", str(path), "--exit-code") == (0, "nothing to change\n", NO_USER)
    exported = done(broker, "cluster", "export")
    assert exported == (
        "topics:\n"
        "  - {name: orders, partitions: 6, replication_factor: 1, "
        'configs: {cleanup.policy: compact, retention.ms: "86400000"}}\n'
        "  - {name: payments, partitions: 1, replication_factor: 1}\n"
        "acls:\n"
        '  - {principal: "User:bob", permission: Deny, operation: Write, resource: Topic, name: ord, '
        "pattern: Prefixed}\n"
        '  - principal: "User:alice"\n    permission: Allow\n    operation: Read\n    resource: Topic\n'
        '    name: orders\n    host: "0:0:0:0:0:0:0:1"\n'
        "quotas:\n"
        "  - {entity: {user: alice}, quotas: {producer_byte_rate: 1048576}}\n"
        "users: []\n"
    )
    path.write_text(exported)
    assert done(broker, "cluster", "diff", str(path)) == "nothing to change\n"
    as_json = path.with_suffix(".json")
    as_json.write_text(done(broker, "cluster", "export", "--json"))
    assert read_cluster_file(as_json)[:4] == read_cluster_file(path)[:4]
    with EmbeddedBroker(AUTHORIZER) as other:
        done(other, "cluster", "apply", str(as_json))
        assert done(other, "cluster", "export") == exported


def test_nothing_is_removed_unless_asked(broker: EmbeddedBroker, path: Path, tmp_path: Path) -> None:
    """Entries that the file does not list are named; a confirmed `--prune` deletes them in the sections of the file."""
    done(broker, "cluster", "apply", str(path))
    done(broker, "topics", "create", "extra", "-p", "2")
    done(broker, "acls", "add", "--topic", "x", "--operation", "read", "--allow", "User:z")
    done(broker, "quotas", "set", "--client-id", "c", "request_percentage=5")
    password = tmp_path / "password"
    password.write_text("secret\n")
    done(broker, "users", "add", "zed", "--password-file", str(password))
    path.write_text(FILE.replace("partitions: 6", "partitions: 8").replace("86400000, cleanup.policy: compact", "1"))
    kept = "~ topic orders: partitions 6 -> 8\n~ topic orders: retention.ms 86400000 -> 1\n"
    removed = (
        "- topic orders: cleanup.policy compact\n"
        "- topic extra: 2 partitions\n"
        "- acl ALLOW User:z from *: READ on Topic x\n"
        "- quota client-id c: request_percentage 5 %\n"
        "- user zed: SCRAM-SHA-512 credential\n"
    )
    named = (
        "note: not in the file: 1 topic config (orders: cleanup.policy); 1 topic (extra); "
        "1 ACL (ALLOW User:z from *: READ on Topic x); 1 quota (client-id c: request_percentage); "
        "1 credential (zed: SCRAM-SHA-512); --prune removes these\n"
    )
    assert outcome(broker, "cluster", "diff", str(path)) == (0, kept, NO_USER + named)
    refused = run(broker, "cluster", "apply", str(path), "--prune", input="n\n")
    assert (refused.exit_code, refused.stdout) == (1, kept + removed)
    assert refused.stderr.endswith("kbroker: not confirmed; nothing was changed\n")
    assert "extra" in done(broker, "topics", "list")
    assert (
        run(broker, "cluster", "apply", str(path), "--prune", "--json").exit_code == 2
    )  # the confirmation needs a terminal
    made = json.loads(done(broker, "cluster", "apply", str(path), "--prune", "--yes", "--json"))
    assert (made["applied"], len(made["changes"])) == (True, 7)
    assert done(broker, "cluster", "diff", str(path), "--prune") == "nothing to change\n"
    assert done(broker, "topics", "list").split()[3:] == ["orders", "8", "1", "payments", "1", "1"]
    path.write_text("topics: []\n")
    left_out = outcome(broker, "cluster", "diff", str(path), "--prune")
    assert left_out == (0, "- topic orders: 8 partitions\n- topic payments: 1 partition\n", "")


def test_what_a_broker_refuses_changes_nothing(broker: EmbeddedBroker, path: Path) -> None:
    """The file is checked before the first change, and an error names the place in the file."""
    path.write_text(FILE + "  - {user: bob}\n")
    bad = FILE.replace("- name: payments", "- {name: payments, configs: {retention.ms: soon}}")
    path.write_text(bad)
    status, shown, error = outcome(broker, "cluster", "apply", str(path))
    assert (status, shown) == (1, "")
    assert error.startswith(f"kbroker: INVALID_CONFIG: {path}: line 3, column 5: topic 'payments': ")
    assert done(broker, "topics", "list") == "TOPIC  PARTITIONS  REPLICAS\n"
    done(broker, "topics", "create", "orders", "-p", "7")
    path.write_text(FILE)
    assert "expected at least 7 partitions, which it has, got 6" in outcome(broker, "cluster", "diff", str(path))[2]


def test_without_an_authorizer_there_are_no_acls(path: Path) -> None:
    """Without an authorizer, an export has no ACLs, and a file with ACLs is refused."""
    with EmbeddedBroker() as broker:
        assert [*json.loads(done(broker, "cluster", "export", "--json"))] == ["topics", "quotas", "users"]
        refused = outcome(broker, "cluster", "diff", str(path))[2]
        assert refused == (
            "kbroker: SECURITY_DISABLED: acls: expected a cluster with an authorizer, found none; "
            "leave the section out\n"
        )


def test_a_cluster_that_stores_no_credentials_has_no_users(path: Path) -> None:
    """Without the requests about SCRAM users, an export has no users, and a file with users is refused."""
    with FakeBroker() as old:
        del old.ranges[DESCRIBE_USER_SCRAM_CREDENTIALS]
        assert cli.printed(old, "cluster", "export", "--only", "users") == ""
        path.write_text("users: [{user: alice}]\n")
        assert cli.refusal(cli.run(old, "cluster", "diff", str(path))) == (
            "UNSUPPORTED_VERSION: users: expected a cluster that stores SCRAM credentials; leave the section out"
        )
        path.write_text("users: []\n")
        assert cli.printed(old, "cluster", "diff", str(path)) == "nothing to change\n"


def test_topics_from_a_file(broker: EmbeddedBroker, path: Path) -> None:
    """`topics create --from` creates the exported topics; its options apply where the file has no value."""
    made = done(broker, "topics", "create", "--from", str(path), "-p", "3", "--config", "segment.bytes=2000000")
    assert made == "created orders with 6 partitions\ncreated payments with 3 partitions\n"
    exported = done(broker, "topics", "export", "payments")
    assert exported == (
        'topics:\n  - {name: payments, partitions: 3, replication_factor: 1, configs: {segment.bytes: "2000000"}}\n'
    )
    assert "segment.bytes" in done(broker, "topics", "export", "orders")
    assert outcome(broker, "topics", "export", "absent")[2] == (
        "kbroker: UNKNOWN_TOPIC_OR_PARTITION: expected topics that exist, got 'absent'\n"
    )
    path.write_text("quotas: []\n")
    assert "expected a section topics, found none" in outcome(broker, "topics", "create", "--from", str(path))[2]
    assert "expected TOPIC or --from" in outcome(broker, "topics", "create")[2]


def test_configs_of_all_resources_of_a_kind(broker: EmbeddedBroker) -> None:
    """Without a name, `configs describe` shows every resource of the type."""
    done(broker, "topics", "create", "a", "b", "--config", "retention.ms=5")
    done(broker, "configs", "alter", "group", "g", "--set", "consumer.session.timeout.ms=50000")
    done(broker, "configs", "alter", "client-metrics", "m", "--set", "metrics=a.")
    names = {"topic": ["a", "b"], "group": ["g"], "client-metrics": ["m"], "broker": ["1"], "broker-logger": ["1"]}
    for kind, expected in names.items():
        found = json.loads(done(broker, "configs", "describe", kind, "--json"))
        assert [(one["type"], one["name"]) for one in found] == [(kind, name) for name in expected]
    assert done(broker, "configs", "describe", "group").splitlines()[2].split()[:2] == [
        "consumer.session.timeout.ms",
        "50000",
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("- a\n", "line 1, column 1: expected a mapping with the sections topics, acls, quotas, users, each a list"),
        ("topic: []\n", "; found 'topic'; did you mean topics?"),
        ("topics: {a: 1}\n", "line 1, column 9: topics: expected a list of topics as {name: NAME"),
        ("topics:\n  - {partitions: 1}\n", "line 2, column 5: topics: expected topics as {name: NAME, "),
        ("topics:\n  - {name: a, partitons: 1}\n", "found 'partitons'; did you mean partitions?"),
        ("topics:\n  - {name: 7}\n", "line 2, column 12: topics: name: expected a string, got 7; quote it"),
        ("topics:\n  - {name: a, partitions: 0}\n", "partitions: expected a whole number from 1, got 0"),
        ("topics:\n  - {name: a, configs: {b: null}}\n", "configs: b: expected a string or a number, got None"),
        ("topics:\n  - name: a\n  - name: a\n", "line 3, column 5: topics: duplicate entry; keep one"),
        ("acls:\n  - {principal: alice, operation: Read, resource: Topic, name: a}\n", "principalType:principalName"),
        ("acls:\n  - {principal: U:a, operation: Reed, resource: Topic, name: a}\n", ": expected one of All, "),
        ("acls:\n  - {principal: U:a, operation: Any, resource: Topic, name: a}\n", "got 'Any'"),
        ("users:\n  - {user: a, mechanism: PLAIN}\n", "expected SCRAM-SHA-512 or SCRAM-SHA-256, got 'PLAIN'"),
        ("quotas:\n  - {entity: {user: a}, quotas: {producer_byte_rate: 1 x}}\n", "line 2, column 54: user a: "),
        ("topics: &a\n  - *a\n", "line 1, column 9: topics: expected topics as"),
    ],
)  # fmt: skip
def test_bad_files(path: Path, text: str, message: str) -> None:
    """An error names the place in the file, the expected and the found value."""
    path.write_text(text)
    with pytest.raises(DocumentError) as raised:
        read_cluster_file(path)
    assert message in str(raised.value)
    assert str(raised.value).startswith(f"{path}: line ")


def test_every_name_survives_a_file(tmp_path: Path) -> None:
    """Names that YAML would read as other values or refuse are quoted."""
    names = ["null", "True", "1", "1.5", "a: b", "#x", "-", "~", "über", "a\nb", "\x85\u2028", "😀", '"', "0x1f", " a"]
    document = {"quotas": [{"entity": {"user": name}, "quotas": {"producer_byte_rate": 5}} for name in names]}
    path = tmp_path / "names.yaml"
    path.write_text(yaml_text(document), encoding="utf-8")
    assert cluster_document(read_cluster_file(path)) == document

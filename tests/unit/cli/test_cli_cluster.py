"""`kbroker cluster`: an `apply` that fails partway, ACLs that a file cannot have."""

import json
from pathlib import Path

import pytest

from kbroker.client.acls import DELETE_ACLS, DESCRIBE_ACLS
from kbroker.client.admin import CREATE_TOPICS
from tests.support.cli import refusal, run
from tests.support.fake_broker import Body, FakeBroker


def test_changes_before_a_lost_connection_are_counted(tmp_path: Path) -> None:
    """The error has the number of changes that were made, as after an error of the broker."""
    file = tmp_path / "cluster.json"
    file.write_text(json.dumps({"topics": [{"name": "a"}, {"name": "b"}]}))

    def create(version: int, body: Body) -> Body | None:
        (topic,) = body["Topics"]
        if topic["Name"] == "b" and not body["validateOnly"]:
            return None
        return {"Topics": [{"Name": topic["Name"], "ErrorCode": 0, "ErrorMessage": None}]}

    with FakeBroker() as broker:
        broker.partitions = {}
        broker.handlers[CREATE_TOPICS] = create
        failed = run(broker, "cluster", "apply", str(file), "--json")
    assert refusal(failed).endswith("the broker closed the connection (1 of 2 changes were made)")


@pytest.mark.parametrize("unknown", [{"Operation": 99}, {"PermissionType": 99}, {"ResourceType": 99}])
def test_acls_of_a_later_kafka_are_left_as_they_are(tmp_path: Path, unknown: dict[str, int]) -> None:
    """A rule with an operation that this version does not have is neither exported to a file nor removed."""
    rule = {"Principal": "User:a", "Host": "*", "Operation": 3, "PermissionType": 3}
    resource = {"ResourceType": 2, "ResourceName": "t", "PatternType": 3}

    def describe(version: int, body: Body) -> Body:
        fields = {**rule, **unknown}
        kind = fields.pop("ResourceType", 2)
        return {"Resources": [{**resource, "Acls": [rule]}, {**resource, "ResourceType": kind, "Acls": [fields]}]}

    with FakeBroker() as broker:
        broker.handlers[DESCRIBE_ACLS] = describe
        exported = run(broker, "cluster", "export", "--only", "acls")
        file = tmp_path / "cluster.yaml"
        file.write_text(exported.stdout)
        applied = run(broker, "cluster", "apply", str(file), "--prune", "--yes")
        assert broker.asked(DELETE_ACLS) == []
    expected = 'acls:\n  - {principal: "User:a", permission: Allow, operation: Read, resource: Topic, name: t}\n'
    assert exported.stdout == expected
    note = "note: 1 ACL of types or operations that this version does not have, left as they are\n"
    assert (exported.stderr, applied.stderr, applied.stdout) == (note, note, "nothing to change\n")

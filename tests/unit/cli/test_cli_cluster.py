"""`kbroker cluster apply` that fails partway."""

import json
from pathlib import Path

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

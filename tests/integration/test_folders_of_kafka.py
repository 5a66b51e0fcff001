"""Folders that Apache Kafka 4.0 to 4.3 formatted and filled, served by kbroker; without Java."""

from pathlib import Path

import pytest

from tests.support.broker import wait_for
from tests.support.client import Client
from tests.support.everything import Everything
from tests.support.ledger import Ledger, differences, take_ledger
from tests.support.recorded_folders import RECORDED, SHARE_GROUP, Recorded, comparable, recorded_part


@pytest.mark.parametrize("recorded", RECORDED, ids=lambda recorded: recorded.name)
def test_a_recorded_folder_is_served(recorded: Recorded, tmp_path: Path) -> None:
    """kbroker shows everything that Kafka showed, extends the folder, and starts on it again."""
    ledger, limits = recorded.unpack(tmp_path)
    with recorded.broker(tmp_path) as broker:
        broker.start(broker.kbroker)
        everything = Everything(broker.bootstrap, broker.sasl_bootstrap)

        def changes(before: Ledger) -> list[str]:
            now = comparable(take_ledger(broker.bootstrap, everything.alice, broker.sasl_bootstrap, limits=limits))
            known = before["Consumer groups"]  # Kafka 4.0 did not describe all groups
            now["Consumer groups"] = {name: now["Consumer groups"].get(name) for name in known}
            return differences(recorded_part(before), recorded_part(now))

        def wait_same(what: str, before: Ledger) -> None:
            found: list[str] = []

            def is_same() -> bool:
                found[:] = changes(before)
                return not found

            try:
                wait_for(what, is_same)
            except AssertionError:
                pytest.fail("\n".join([*found, broker.kbroker.tail()]), pytrace=False)

        wait_same("all that Kafka showed", ledger)
        everything.round = 1
        everything.write()
        everything.read("classic-group", "classic")
        everything.read("consumer-group", "consumer")
        before = comparable(take_ledger(broker.bootstrap, everything.alice, broker.sasl_bootstrap, limits=limits))
        broker.stop()
        broker.start(broker.kbroker)
        wait_same("what was there before the restart", before)
        warnings = [line.partition("] WARN ")[2] for line in broker.kbroker.output]
        unserved = [text.split()[0] for text in warnings if "which kbroker does not serve" in text]
        assert unserved == [*recorded.unserved] * 2  # once at each start
        with Client(broker.bootstrap) as client:
            groups = client.call("ListGroups", 5, {"StatesFilter": [], "TypesFilter": []})["Groups"]
        kinds = {group["GroupId"]: group["GroupType"] for group in groups}
        assert kinds.get(SHARE_GROUP, "share") == "share"

"""Tests of the records of changed configs, and of a broker's configs in the metadata image."""

from kbroker.common.configs.config_resource import ConfigResourceType
from kbroker.metadata.configs.resource_configs import broker_configs, config_records
from tests.support.metadata import MemoryController, change, store_configs

TOPIC, BROKER = ConfigResourceType.TOPIC, ConfigResourceType.BROKER


def test_only_changed_configs_have_a_record() -> None:
    """Records set new and changed values and remove missing ones."""
    before, after = {"same": "1", "other": "2", "old": "3"}, {"same": "1", "other": "4", "new": ""}
    records = config_records(TOPIC, "t", before, after)
    assert {(one.name, one.body["ResourceType"], one.body["ResourceName"]) for one in records} == {
        ("ConfigRecord", 2, "t")
    }
    assert {one.body["Name"]: one.body["Value"] for one in records} == {"other": "4", "new": "", "old": None}
    assert config_records(TOPIC, "t", after, after) == []
    controller = MemoryController()
    store_configs(controller, TOPIC, "t", before)
    change(controller, *records)
    assert controller.image.configs[TOPIC, "t"] == after
    change(controller, *config_records(TOPIC, "t", after, {}))
    assert (TOPIC, "t") not in controller.image.configs


def test_configs_of_a_broker() -> None:
    """A broker gets its own configs and the cluster-wide defaults, not the configs of another broker."""
    controller = MemoryController()
    store_configs(controller, BROKER, "1", {"a": "1"})
    store_configs(controller, BROKER, "2", {"a": "2"})
    store_configs(controller, BROKER, "", {"b": "3"})
    store_configs(controller, TOPIC, "1", {"c": "4"})
    assert broker_configs(controller.image, 1) == ({"a": "1"}, {"b": "3", "min.insync.replicas": "1"})
    assert broker_configs(controller.image, 3)[0] == {}

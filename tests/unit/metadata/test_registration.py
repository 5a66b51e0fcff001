"""Registration of the broker: its records, the partitions that it then leads, and metadata that it cannot serve."""

import uuid
from typing import Any

import pytest

from kbroker.common.feature_versions import LAST_STABLE_LEVEL
from kbroker.common.listeners import Listener
from kbroker.metadata.image.image import MetadataImage
from kbroker.metadata.image.partition_registration import MIGRATING, RECOVERING
from kbroker.metadata.image.registrations import Endpoint, VersionRange
from kbroker.metadata.log.servable import UnservableMetadataError, check_servable
from kbroker.metadata.records.metadata_record import MetadataRecord
from kbroker.metadata.registration import fencing_records, registration_records
from tests.support.fixtures import fixture_of
from tests.support.metadata import MemoryController, change, store_configs
from tests.support.metadata_images import broker, partition, read, topic

NODE, FOLDER, OTHER = 1, uuid.UUID(int=77), uuid.UUID(int=78)
LISTENERS = [Listener("PLAINTEXT", "PLAINTEXT", "here", 9092), Listener("SECURE", "SASL_SSL", "there", 9093)]
LEVEL_WITHOUT_DIRECTORIES = 16


def add_topic(controller: MemoryController, *partitions: dict[str, Any]) -> None:
    """Add topic "t" with one partition for each mapping of fields that differ from the defaults, led by this broker."""
    usual = {"Replicas": [NODE], "Isr": [NODE], "Directories": [FOLDER]}
    rows = [partition(5, index, **{**usual, **fields}) for index, fields in enumerate(partitions)]
    change(controller, *read([topic("t", 5), *rows]))


def register(controller: MemoryController, *folders: uuid.UUID, level: int = LAST_STABLE_LEVEL) -> list[MetadataRecord]:
    """Register the broker and return the records."""

    def plan(image: MetadataImage) -> list[MetadataRecord]:
        return registration_records(image, level, controller.end_offset, NODE, LISTENERS, "rack", folders)

    controller.change(plan)
    return controller.storage.appended[-1]


controller = fixture_of(MemoryController)


def test_a_broker_is_registered_and_unfenced(controller: MemoryController) -> None:
    """The broker epoch is the offset of the registration record, as in Kafka."""
    offset = controller.end_offset
    records = register(controller, OTHER, FOLDER)
    assert [record.name for record in records] == ["RegisterBrokerRecord", "BrokerRegistrationChangeRecord"]
    broker = controller.image.brokers[NODE]
    assert (broker.epoch, broker.is_fenced, broker.in_controlled_shutdown, broker.rack) == (
        offset,
        False,
        False,
        "rack",
    )
    assert broker.listeners == {"PLAINTEXT": Endpoint("here", 9092, 0), "SECURE": Endpoint("there", 9093, 3)}
    assert broker.supported_features["metadata.version"] == VersionRange(7, 30)
    assert "eligible.leader.replicas.version" not in broker.supported_features, "Kafka omits features without a level"
    assert broker.directories == (FOLDER, OTHER)
    before = broker.incarnation_id
    register(controller, FOLDER)
    assert controller.image.brokers[NODE].epoch > offset
    assert controller.image.brokers[NODE].incarnation_id != before


def test_brokers_of_a_former_cluster_are_unregistered(controller: MemoryController) -> None:
    """A new topic then has no replicas on them, with which the broker would not start again."""
    change(controller, *read([broker(2), broker(3, Fenced=False)]))
    assert [one.name for one in register(controller, FOLDER)][:3] == ["RegisterBrokerRecord"] + [
        "UnregisterBrokerRecord"
    ] * 2
    assert [*controller.image.brokers] == [NODE]
    register(controller, FOLDER)
    assert controller.storage.appended[-1][1].name == "BrokerRegistrationChangeRecord"


def test_a_clean_stop_fences_the_broker(controller: MemoryController) -> None:
    register(controller, FOLDER)
    controller.change(lambda image: fencing_records(image, LAST_STABLE_LEVEL, NODE))
    assert controller.image.brokers[NODE].is_fenced
    register(controller, FOLDER)
    assert not controller.image.brokers[NODE].is_fenced


def test_the_broker_leads_every_partition(controller: MemoryController) -> None:
    """Partitions without a leader, as a stop of Apache Kafka leaves them, are led again; others get no record."""
    without: dict[str, Any] = {"Leader": -1, "Isr": [], "EligibleLeaderReplicas": [NODE], "LastKnownElr": [NODE]}
    add_topic(
        controller, {}, without, {"Leader": -1, "LeaderRecoveryState": RECOVERING}, {"LeaderEpoch": 4, "Leader": -1}
    )
    records = register(controller, FOLDER)
    changed = [record.body["PartitionId"] for record in records if record.name == "PartitionChangeRecord"]
    assert changed == [1, 2, 3]
    partitions = controller.image.topics["t"].partitions
    assert {one._replace(leader_epoch=0, partition_epoch=0) for one in partitions} == {
        partitions[0]._replace(leader_epoch=0, partition_epoch=0)
    }
    assert [one.leader_epoch for one in partitions] == [0, 1, 1, 5]
    assert len(register(controller, FOLDER)) == 2, "a second start changes no partition"


def test_a_single_log_folder_has_all_partitions(controller: MemoryController) -> None:
    """A single log folder becomes every partition's directory, unless the level has no directories."""
    add_topic(controller, {"Directories": [MIGRATING]}, {"Directories": [OTHER]}, {})
    assert len(register(controller, FOLDER, OTHER)) == 2
    assert len(register(controller, FOLDER, level=LEVEL_WITHOUT_DIRECTORIES)) == 2
    assert controller.image.brokers[NODE].directories == ()
    assert len(register(controller, FOLDER)) == 4
    assert {one.directories for one in controller.image.topics["t"].partitions} == {(FOLDER,)}
    assert {one.leader_epoch for one in controller.image.topics["t"].partitions} == {0}


def test_replicas_on_other_nodes_cannot_be_served(controller: MemoryController) -> None:
    add_topic(controller, {}, {"Replicas": [NODE, 2], "Directories": [FOLDER, OTHER]})
    with pytest.raises(UnservableMetadataError) as caught:
        check_servable(controller.image, NODE)
    assert str(caught.value) == (
        "partition t-1: expected its only replica on node 1, found replicas on 1, 2; move them to this node with "
        "Apache Kafka first"
    )


def test_tiered_storage_cannot_be_served(controller: MemoryController) -> None:
    add_topic(controller, {})
    check_servable(controller.image, NODE)
    store_configs(controller, 2, "t", {"remote.storage.enable": "false"})
    store_configs(controller, 4, "", {"remote.storage.enable": "true"})
    check_servable(controller.image, NODE)
    store_configs(controller, 2, "t", {"remote.storage.enable": "TRUE"})
    with pytest.raises(UnservableMetadataError, match=r"^topic t has remote\.storage\.enable=true: tiered storage is"):
        check_servable(controller.image, NODE)

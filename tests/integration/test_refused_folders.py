"""Folders of a cluster that a single kbroker cannot serve: refused with one sentence and left unchanged."""

import json
import uuid
from pathlib import Path
from typing import Any

import pytest

from kbroker.broker import Broker, BrokerStartError
from kbroker.common.configs.config import BrokerConfig
from kbroker.common.configs.config_def import ConfigError
from kbroker.metadata.log.loader import LoadedMetadata
from kbroker.metadata.log.metadata_log import LogFiles
from kbroker.metadata.records.batches import build_control, build_records
from kbroker.metadata.records.control_records import ControlRecord, LeaderChange, Voters
from kbroker.metadata.records.metadata_record import MetadataRecord, metadata_record

TOPIC_ID = uuid.UUID(int=5)
TOPIC = metadata_record("TopicRecord", {"Name": "t", "TopicId": TOPIC_ID})
STATIC = {"controller.quorum.voters": "1@127.0.0.1:9093"}


def replicas(*nodes: int) -> MetadataRecord:
    body = {"PartitionId": 0, "TopicId": TOPIC_ID, "Replicas": list(nodes), "Isr": list(nodes), "Leader": nodes[0]}
    return metadata_record("PartitionRecord", body)


def config(key: str, value: str) -> MetadataRecord:
    return metadata_record("ConfigRecord", {"ResourceType": 2, "ResourceName": "t", "Name": key, "Value": value})


def level(number: int) -> MetadataRecord:
    return metadata_record("FeatureLevelRecord", {"Name": "metadata.version", "FeatureLevel": number})


def served(folder: Path, settings: dict[str, str]) -> None:
    """Serve the folder once. Raises: BrokerStartError."""
    values: dict[str, Any] = {"listeners": "PLAINTEXT://127.0.0.1:0", "log.dirs": str(folder), **settings}
    broker = Broker(BrokerConfig(values))
    broker.start()
    broker.stop()


def contents(folder: Path) -> dict[str, bytes]:
    """Return the files that Apache Kafka reads at its start."""
    names = ("meta.properties", ".kafka_cleanshutdown", "*/quorum-state", "*/leader-epoch-checkpoint", "*/*.log")
    return {str(path): path.read_bytes() for name in names for path in folder.glob(name)}


def check_refused(
    folder: Path, settings: dict[str, str], sentence: str, kind: type[Exception] = BrokerStartError
) -> None:
    before = contents(folder)
    with pytest.raises(kind) as refused:
        served(folder, settings)
    assert sentence in str(refused.value)
    assert contents(folder) == before


@pytest.mark.parametrize(
    ("records", "sentence"),
    [
        ([level(31)], "-0: metadata.version: expected a level from 7 (3.3-IV3) to 30 (4.3-IV0), found 31"),
        ([level(6)], "-0: metadata.version: expected a level from 7 (3.3-IV3) to 30 (4.3-IV0), found 6; use"),
        ([TOPIC, replicas(1, 2)], "partition t-0: expected its only replica on node 1, found replicas on 1, 2; move"),
        ([TOPIC, replicas(2)], "partition t-0: expected its only replica on node 1, found replicas on 2; move"),
        (
            [TOPIC, replicas(1), config("remote.storage.enable", "true")],
            "topic t has remote.storage.enable=true: tiered storage is not supported; disable it with",
        ),
    ],
)
def test_metadata_that_cannot_be_served(tmp_path: Path, records: list[MetadataRecord], sentence: str) -> None:
    """Metadata of other levels, with replicas on other nodes or with tiered storage is refused."""
    served(tmp_path, {})
    assert json.loads((tmp_path / ".kafka_cleanshutdown").read_text())["brokerEpoch"] > 0
    append(tmp_path, build_records(records, *_next(tmp_path)))
    check_refused(tmp_path, {}, sentence)


@pytest.mark.parametrize("settings", [{}, STATIC], ids=["dynamic", "static"])
def test_voters_of_other_nodes(tmp_path: Path, settings: dict[str, str]) -> None:
    """A quorum with other voters is refused, with each kraft.version."""
    served(tmp_path, settings)
    control: ControlRecord = LeaderChange(2, (1, 2, 3), (2, 3))
    if not settings:
        voters = LoadedMetadata(LogFiles(tmp_path)).voters
        assert voters is not None
        control = Voters((*voters.voters, voters.voters[0]._replace(id=2, directory_id=uuid.UUID(int=200))))
    append(tmp_path, build_control([control], *_next(tmp_path)))
    check_refused(tmp_path, settings, "as the only voter of the quorum, found 1")


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"process.roles": "broker"}, 'Missing required configuration "node.id"'),
        ({"controller.quorum.voters": "1@a:1,2@b:2"}, "cannot join controllers of other nodes (2)"),
    ],
)
def test_nodes_of_a_cluster(tmp_path: Path, settings: dict[str, str], sentence: str) -> None:
    """The properties of a node that is only a broker, or one of several controllers, are refused."""
    served(tmp_path, {})
    check_refused(tmp_path, settings, sentence, ConfigError)


def test_a_broker_of_a_cluster_without_its_metadata(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder with partitions but no metadata log is refused; the remedy names a relative folder by its full path."""
    served(tmp_path, {})
    (tmp_path / "t-0").mkdir()
    (tmp_path / "t-0" / f"{0:020}.log").touch()
    for path in (tmp_path / "__cluster_metadata-0").iterdir():
        path.unlink()
    (tmp_path / "__cluster_metadata-0").rmdir()
    (tmp_path / "bootstrap.checkpoint").unlink()
    check_refused(tmp_path, {}, "__cluster_metadata-0 is missing, but")
    monkeypatch.chdir(tmp_path)
    check_refused(tmp_path, {"log.dirs": "."}, f"'kbroker log recover-metadata {tmp_path}'")


def append(folder: Path, batch: bytes) -> None:
    with (folder / "__cluster_metadata-0" / f"{0:020}.log").open("ab") as file:
        file.write(batch)


def _next(folder: Path) -> tuple[int, int, int]:
    """Return the offset, epoch and timestamp of the next batch of the metadata log."""
    image = LoadedMetadata(LogFiles(folder)).image
    return image.offset + 1, image.epoch, 0

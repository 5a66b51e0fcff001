"""Folders of earlier versions: their topics with records, configs and quotas are taken over."""

import shutil
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest

from kbroker.log import checkpoints
from kbroker.metadata.log.former_file import FILE_NAME
from tests.integration.test_metadata_disk import Administrator, produce, record_count
from tests.support import wire
from tests.support.broker import BrokerProcess
from tests.support.metadata_file import Rows, write_metadata_file

pytestmark = pytest.mark.slow

METADATA_LOG = "__cluster_metadata-0"


def as_of_an_earlier_version(folder: Path, *topics: str) -> None:
    """Replace the metadata log of a stopped broker by the metadata file of an earlier version."""
    owner = checkpoints.read_meta_properties(folder)
    assert owner is not None
    shutil.rmtree(folder / METADATA_LOG)
    (folder / "bootstrap.checkpoint").unlink()
    ids = {topic: checkpoints.read_partition_metadata(folder / f"{topic}-0") or uuid.UUID(int=0) for topic in topics}
    rows: Rows = {
        "topics": [(topic, topic_id.bytes, 2) for topic, topic_id in ids.items()],
        "configs": [("topic", topics[0], "retention.ms", "-1"), ("broker", "", "min.insync.replicas", "1")],
        "producer_ids": [(4000,)],
        "quotas": [('{"user": "u"}', "producer_byte_rate", 1000000.0)],
    }
    write_metadata_file(folder, rows, node_id=owner.node_id, cluster_id=owner.cluster_id)


@pytest.mark.parametrize("kills", [False, True])
def test_a_folder_of_an_earlier_version_is_served(
    tmp_path: Path, start_broker: Callable[..., BrokerProcess], kills: bool
) -> None:
    """Records, configs, quotas and producer ids of an earlier version's folder continue, also after a kill."""
    folder = tmp_path / "data"
    broker = start_broker(folder=folder)
    client = Administrator(broker)
    for topic in ("a", "b"):
        assert client.create(topic, 2) == (0, None)
        assert produce(broker, topic) == wire.Produced(0, 0)
    client.raw.close()
    if kills:
        broker.kill()
    else:
        assert broker.stop() == 0
    as_of_an_earlier_version(folder, "a", "b")
    for _ in range(2):
        broker.start()
        client = Administrator(broker)
        assert client.topics() == {"a": 2, "b": 2}
        quotas = client.raw.call(48, 1, {"Components": [], "Strict": False})["Entries"]
        assert [(row["Entity"][0]["EntityName"], row["Values"][0]["Value"]) for row in quotas] == [("u", 1000000.0)]
        first_id = client.raw.call(22, 4, {"TransactionalId": None, "TransactionTimeoutMs": 1000})["ProducerId"]
        assert first_id >= 4000
        for topic in ("a", "b"):
            count = record_count(broker, topic)[1]
            assert produce(broker, topic) == wire.Produced(0, count)
        client.raw.close()
        assert broker.stop() == 0
    assert not (folder / FILE_NAME).exists()
    assert (folder / f"{FILE_NAME}.taken-over").exists()
    output = "".join(broker.output)
    assert f"the metadata of {folder / FILE_NAME} is in {folder / METADATA_LOG} now: 2 topics" in output
    assert "Traceback" not in output

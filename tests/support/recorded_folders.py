"""Folders that releases of Apache Kafka formatted and filled, with the ledgers of the brokers that served them.

    python -m tests.support.recorded_folders

records the folders again, which requires Java and Maven and takes about two minutes. An archive has the log folders and
the ledger as JSON. The archives are small because index files have holes.
"""

import json
import subprocess
import tarfile
import tempfile
import uuid
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from tests.support import wire
from tests.support.broker import wait_for
from tests.support.client import Body, Client
from tests.support.either_broker import EitherBroker
from tests.support.everything import Everything
from tests.support.ledger import Ledger, limits_of, take_ledger

FOLDER = Path(__file__).parent / "kafka_folders"
LEDGER = "ledger.json"
CENTURY_MS, LONG_MS = "3000000000000", "2000000000"
#: Nothing in a recorded folder expires before a test has read it.
SETTINGS = {
    "delegation.token.max.lifetime.ms": CENTURY_MS,
    "delegation.token.expiry.time.ms": CENTURY_MS,
    "log.retention.check.interval.ms": LONG_MS,
    "offsets.retention.check.interval.ms": LONG_MS,
    "share.coordinator.state.topic.num.partitions": "2",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": LONG_MS,
    "transaction.remove.expired.transaction.cleanup.interval.ms": LONG_MS,
}
DEFAULT, STATIC = 5, 4  # sources of configs that are not stored
SHARE_GROUP, SHARE_TOPIC = "share-group", "__share_group_state"
NEW_FEATURES = ("share.version", "streams.version")
UNSUPPORTED_VERSION = 35


class Recorded(NamedTuple):
    """Folder of a release.

    ``unserved``: finalized features that kbroker stores without serving them; ``is_static``: the quorum has
    kraft.version 0; ``is_killed``: Kafka was killed at the end.
    """

    name: str
    version: str
    unserved: Sequence[str] = ("eligible.leader.replicas.version",)
    log_dirs: Sequence[str] = ("data",)
    is_static: bool = False
    is_killed: bool = False

    @property
    def archive(self) -> Path:
        """Archive of the folder."""
        return FOLDER / f"{self.name}.tar.xz"

    def broker(self, folder: Path) -> EitherBroker:
        """Return the broker that serves the folder."""
        broker = EitherBroker(folder, SETTINGS, self.log_dirs, self.version)
        if self.is_static:
            voters = f"1@127.0.0.1:{broker.port + 1}"
            broker.write_properties(controller_quorum_voters=voters, controller_quorum_bootstrap_servers="")
        return broker

    def unpack(self, folder: Path) -> tuple[Ledger, dict[str, int]]:
        """Unpack the log folders; return the ledger and the limits with which it was taken."""
        with tarfile.open(self.archive) as archive:
            archive.extractall(folder, filter="data")
        kept = json.loads((folder / LEDGER).read_text(encoding="utf-8"))
        return kept["ledger"], kept["limits"]


RECORDED = (
    Recorded("kafka-4.0", "4.0.0", ()),
    Recorded("kafka-4.1-killed", "4.1.1", ("eligible.leader.replicas.version",), is_killed=True),
    Recorded("kafka-4.2-static", "4.2.0", is_static=True),
    Recorded("kafka-4.3", "4.3.1"),
    Recorded("kafka-4.3-two-folders-killed", "4.3.1", log_dirs=("a", "b"), is_killed=True),
    Recorded("kafka-4.3-static-killed", "4.3.1", is_static=True, is_killed=True),
)


def comparable(ledger: Ledger) -> Ledger:
    """Return a ledger in the types of JSON, without values that depend on the folder or the release.

    Such values are paths and config defaults. Producers are left out because they expire when a log is opened.
    """
    stored = {
        subject: _stored(value) if subject.startswith("configs of") else value
        for subject, value in ledger.items()
        if subject != "producers"
    }
    stored["topic configs"] = {topic: _stored(configs) for topic, configs in ledger["topic configs"].items()}
    stored["log dirs"] = {Path(path).name: found for path, found in ledger["log dirs"].items()}
    found: Ledger = json.loads(json.dumps(_plain(stored)))
    return found


def _stored(configs: Mapping[str, Body]) -> dict[str, Any]:
    return {
        name: (entry["Value"], entry["ConfigSource"])
        for name, entry in configs.items()
        if entry["ConfigSource"] not in (DEFAULT, STATIC)
    }


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _plain(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(one) for one in value]
    return value if isinstance(value, (str, int, float, type(None))) else str(value)


def record(recorded: Recorded) -> None:
    """Format a folder with a release, fill it, and write the archive."""
    with tempfile.TemporaryDirectory() as temporary, recorded.broker(Path(temporary)) as broker:
        broker.format_by_kafka(*([] if recorded.is_static else ["--standalone"]))
        broker.start(broker.kafka)
        everything = Everything(broker.bootstrap, broker.sasl_bootstrap, has_shadows=False)
        limits = limits_of(broker.bootstrap)
        everything.fill(has_group_configs=limits["ListConfigResources"] > 0)
        if limits.get("ShareGroupHeartbeat", 0) > 0:
            join_share_group(broker)
        ledger = take_ledger(broker.bootstrap, everything.alice, broker.sasl_bootstrap, limits=limits)
        kept = {"ledger": comparable(recorded_part(ledger)), "limits": limits, "token": _plain(everything.token)}
        (Path(temporary) / LEDGER).write_text(json.dumps(kept), encoding="utf-8")
        if recorded.is_killed:
            broker.kill()
        else:
            broker.stop()
        FOLDER.mkdir(exist_ok=True)
        names = [LEDGER, *recorded.log_dirs]
        command = ["tar", "--sparse", "--owner=0", "--group=0", "-C", temporary, "-cJf", str(recorded.archive), *names]
        subprocess.run(command, check=True)
    print(recorded.archive.name, recorded.archive.stat().st_size, "bytes")


def join_share_group(broker: EitherBroker) -> None:
    """Make a share group, which earlier versions of kbroker did not serve; it has records in the internal topics."""
    member = str(uuid.uuid4())
    with Client(broker.bootstrap) as client:
        epoch = 0
        for _ in range(10):
            topics = ["plain"] if epoch == 0 else None
            body = {"GroupId": SHARE_GROUP, "MemberId": member, "MemberEpoch": epoch, "SubscribedTopicNames": topics}
            response = client.call("ShareGroupHeartbeat", 1, {**body, "RackId": None})
            if response["ErrorCode"] == UNSUPPORTED_VERSION:  # not enabled before 4.2
                return
            epoch = response["MemberEpoch"]
    for index in (0, 1):
        wait_for("the topic of the share groups", partial(wire.is_ready, broker.bootstrap, SHARE_TOPIC, index))


def recorded_part(ledger: Ledger) -> Ledger:
    """Return a ledger without the share group and the features of newer releases, which recordings lack."""
    kept = dict(ledger)
    kept["features"] = {name: level for name, level in ledger["features"].items() if name not in NEW_FEATURES}
    for subject in ("groups", "group offsets"):
        kept[subject] = {name: found for name, found in ledger[subject].items() if name != SHARE_GROUP}
    return kept


if __name__ == "__main__":
    for one in RECORDED:
        record(one)

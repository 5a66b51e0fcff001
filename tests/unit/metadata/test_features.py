"""Levels of features: changes by clients, Kafka's refusals, and restarts."""

from pathlib import Path
from typing import Any

import pytest

from kbroker.common.errors import Errors, KafkaError
from kbroker.metadata.features import SUPPORTED, Features, FeatureUpdate
from kbroker.metadata.records.metadata_record import metadata_record
from tests.support.metadata import LoggedController, MemoryController, change, following
from tests.support.server import Bench, make_bench

FAILED = "The update failed for all features since the following feature had an error: "
TRANSACTIONS, METADATA = "transaction.version", "metadata.version"
UNSERVED = "eligible.leader.replicas.version"


def update(bench: Bench, *rows: tuple[str, int, int], version: int = 2, **body: Any) -> tuple[int, str | None]:
    names = ("Feature", "MaxVersionLevel", "UpgradeType")
    asked = [dict(zip(names, row, strict=True)) for row in rows]
    response = bench.ask("UpdateFeatures", version, {"FeatureUpdates": asked, **body})
    results = [(row["Feature"], row["ErrorCode"], row["ErrorMessage"]) for row in response["Results"]]
    has_results = version < 2 and not response["ErrorCode"]
    assert results == ([(name, 0, "NONE") for name, _, _ in rows] if has_results else [])
    return response["ErrorCode"], response["ErrorMessage"]


def in_force(bench: Bench) -> tuple[dict[str, int], int]:
    body = {"ClientSoftwareName": "a", "ClientSoftwareVersion": "1"}
    response = bench.ask("ApiVersions", 4, body)
    return {row["Name"]: row["MaxVersionLevel"] for row in response["FinalizedFeatures"]}, response[
        "FinalizedFeaturesEpoch"
    ]


@pytest.mark.parametrize("version", [1, 2])
def test_a_feature_goes_down_and_up(bench: Bench, version: int) -> None:
    """A level is lowered only by a downgrade and raised only by an upgrade; each change has a new epoch."""
    before, epoch = in_force(bench)
    assert (before[TRANSACTIONS], epoch) == (2, bench.ctx.image.offset)
    assert update(bench, (TRANSACTIONS, 1, 2), version=version, ValidateOnly=True) == (0, None)
    assert in_force(bench) == (before, epoch)
    assert update(bench, (TRANSACTIONS, 1, 2), version=version) == (0, None)
    assert in_force(bench) == ({**before, TRANSACTIONS: 1}, epoch + 1)
    assert update(bench, (TRANSACTIONS, 0, 3), version=version) == (0, None)
    assert in_force(bench) == ({METADATA: before[METADATA], **_without(before, TRANSACTIONS)}, epoch + 2)
    assert update(bench, (TRANSACTIONS, 2, 1), version=version) == (0, None)
    assert in_force(bench) == (before, epoch + 3)
    assert update(bench) == (0, None)
    assert in_force(bench) == (before, epoch + 3)


def _without(levels: dict[str, int], name: str) -> dict[str, int]:
    return {key: level for key, level in levels.items() if key != name}


@pytest.mark.parametrize(
    ("row", "text"),
    [
        ((TRANSACTIONS, 3, 1), "Local controller 0 only supports versions 0-2"),
        ((TRANSACTIONS, -1, 2), "A feature version cannot be less than 0."),
        ((TRANSACTIONS, 1, 9), "The controller does not support the given upgrade type."),
        ((UNSERVED, 1, 1), "Local controller 0 does not support this feature."),
        (("kraft.version", 0, 2), "The quorum of this broker cannot change it."),
    ],
)  # fmt: skip
def test_what_is_refused(row: tuple[str, int, int], text: str) -> None:
    """No part of the request is applied, and the message is Kafka's."""
    bench = make_bench(node_id=0)
    before = in_force(bench)
    name, level, _ = row
    words = f"{FAILED}Invalid update version {level} for feature {name}. {text}"
    assert update(bench, (TRANSACTIONS, 2, 1) if name != TRANSACTIONS else (METADATA, 30, 1), row) == (95, words)
    assert in_force(bench) == before


@pytest.mark.parametrize(
    ("names", "named"),
    [
        (("share.version", "group.version"), "group.version"),
        (("streams.version", METADATA), METADATA),
        ((TRANSACTIONS, "streams.version", ""), ""),
        (("nosuch", TRANSACTIONS), TRANSACTIONS),
        (("nosuch", "", METADATA), ""),
    ],
)
def test_the_first_of_several_errors_is_kafkas(bench: Bench, names: tuple[str, ...], named: str) -> None:
    """The message names the first feature with an error in the order of Java's hash map, as Apache Kafka 4.3.1's."""
    code, message = update(bench, *((name, -1, 2) for name in names))
    assert (code, message) == (
        Errors.INVALID_UPDATE_VERSION,
        f"{FAILED}Invalid update version -1 for feature {named}. A feature version cannot be less than 0.",
    )


def test_the_version_of_the_quorum_has_no_record(bench: Bench) -> None:
    """The quorum's version is in control records: its current level is accepted, and no record is stored."""
    assert update(bench, ("kraft.version", 1, 1)) == (0, None)
    assert bench.storage.appended == []


def test_consumer_groups_are_off_at_level_0(bench: Bench) -> None:
    """Requests of consumer groups are still advertised, as by Kafka."""
    assert update(bench, ("group.version", 0, 2)) == (0, None)
    response = bench.ask("ConsumerGroupHeartbeat", 1, {"GroupId": "g", "MemberId": "m", "MemberEpoch": 0})
    assert response["ErrorCode"] == Errors.UNSUPPORTED_VERSION
    (group,) = bench.ask("ConsumerGroupDescribe", 0, {"GroupIds": ["g"]})["Groups"]
    assert group["ErrorCode"] == Errors.UNSUPPORTED_VERSION


def test_share_groups_are_off_at_level_0(bench: Bench) -> None:
    """Requests for the state of share partitions are still served, as by Kafka."""
    assert update(bench, ("share.version", 0, 2)) == (0, None)
    beat = {"GroupId": "g", "MemberId": "m", "MemberEpoch": 0, "RackId": None, "SubscribedTopicNames": ["t"]}
    assert bench.ask("ShareGroupHeartbeat", 1, beat)["ErrorCode"] == Errors.UNSUPPORTED_VERSION
    (group,) = bench.ask("ShareGroupDescribe", 1, {"GroupIds": ["g"]})["Groups"]
    assert group["ErrorCode"] == Errors.UNSUPPORTED_VERSION
    (group,) = bench.ask("DescribeShareGroupOffsets", 1, {"Groups": [{"GroupId": "g", "Topics": None}]})["Groups"]
    assert group["ErrorCode"] == Errors.UNSUPPORTED_VERSION
    for api in ("AlterShareGroupOffsets", "DeleteShareGroupOffsets"):
        assert bench.ask(api, 0, {"GroupId": "g", "Topics": []})["ErrorCode"] == Errors.UNSUPPORTED_VERSION


def test_levels_survive_a_restart(tmp_path: Path) -> None:
    """A level of a later broker becomes the nearest one that this broker supports."""
    controller = LoggedController(tmp_path)
    following(controller, Features(controller)).update([FeatureUpdate(TRANSACTIONS, 1, 2)], 1)
    change(controller, metadata_record("FeatureLevelRecord", {"Name": "group.version", "FeatureLevel": 7}))
    epoch = controller.image.offset
    controller.close()
    controller = LoggedController(tmp_path)
    again = Features(controller).finalized
    controller.close()
    assert (again.levels[TRANSACTIONS], again.levels["group.version"]) == (1, SUPPORTED["group.version"][1])
    assert again.epoch >= epoch
    assert controller.image.features["group.version"] == 7, "the level is kept for the broker that wrote it"


def test_a_feature_that_is_not_served_is_kept(caplog: pytest.LogCaptureFixture) -> None:
    """A warning is logged once, at the start."""
    controller = MemoryController()
    change(controller, metadata_record("FeatureLevelRecord", {"Name": UNSERVED, "FeatureLevel": 1}))
    features = following(controller, Features(controller))
    features.update([FeatureUpdate(TRANSACTIONS, 1, 2)], 1)
    warnings = [record.message for record in caplog.records if record.levelname == "WARNING"]
    sentence = "is finalized at level 1, which kbroker does not serve: it is kept, and level 0 is served"
    assert warnings == [f"{UNSERVED} {sentence}"]
    assert controller.image.features[UNSERVED] == 1


def test_a_disk_that_refuses_changes_nothing() -> None:
    """A change that cannot be stored has no effect and runs no hook; hooks run after a change is stored."""
    controller = MemoryController()
    features = following(controller, Features(controller))
    seen = []
    features.on_change(lambda: seen.append(features.finalized.epoch))
    controller.storage.is_full = True
    before = features.finalized
    with pytest.raises(KafkaError, match="KAFKA_STORAGE_ERROR"):
        features.update([FeatureUpdate(TRANSACTIONS, 1, 2)], 1)
    assert (features.finalized, seen) == (before, [])
    controller.storage.is_full = False
    features.update([FeatureUpdate(TRANSACTIONS, 1, 2)], 1)
    assert (features.level(TRANSACTIONS), features.level("no.such"), seen) == (1, 0, [before.epoch + 1])

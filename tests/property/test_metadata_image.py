"""The image of the metadata log is the same after its snapshot and for any division of the log into deltas."""

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from kbroker.metadata.image.delta import MetadataDelta
from kbroker.metadata.image.image import EMPTY_IMAGE, MetadataImage
from kbroker.metadata.image.image_errors import MetadataReplayError
from kbroker.metadata.image.partition_registration import UNASSIGNED
from kbroker.metadata.image.snapshot_records import records_of
from tests.support import metadata_images as rows
from tests.support.metadata_images import Row, read, uid

NUMBERS = st.integers(1, 3)
NODES = st.lists(st.integers(1, 3), max_size=3, unique=True)
IDS = st.sampled_from([UNASSIGNED, uid(5), uid(6)])


def fields(**values: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries({}, optional=values)


def replicas(body: dict[str, Any]) -> dict[str, Any]:
    """Return the body with a directory for each replica, if replicas are named."""
    return {**body, "Directories": [uid(5)] * len(body["Replicas"])} if "Replicas" in body else body


PARTITION = fields(
    Replicas=NODES, Isr=NODES, RemovingReplicas=NODES, AddingReplicas=NODES, Leader=st.integers(-1, 3),
    LeaderRecoveryState=st.integers(0, 1), EligibleLeaderReplicas=NODES, LastKnownElr=NODES,
).map(replicas)  # fmt: skip
NAMES: st.SearchStrategy[dict[str, str | None]] = st.sampled_from(
    [{"user": "alice"}, {"user": None, "client-id": "c"}, {"client-id": None}, {"ip": "::1"}]
)
KEYS = st.sampled_from(["x", "y"])
BROKER = fields(
    Rack=st.sampled_from(["", "r"]), Fenced=st.booleans(), InControlledShutdown=st.booleans(),
    LogDirs=st.lists(IDS, unique=True), CordonedLogDirs=st.lists(IDS), BrokerEpoch=st.integers(1, 3),
)  # fmt: skip
CHANGED_BROKER = fields(
    Fenced=st.integers(-1, 1), InControlledShutdown=st.integers(0, 1), LogDirs=st.lists(IDS, unique=True),
    CordonedLogDirs=st.lists(IDS),
)  # fmt: skip
EPOCH = st.integers(1, 3)
ROWS: st.SearchStrategy[Row] = st.one_of(
    st.builds(rows.topic, st.sampled_from("ab"), NUMBERS),
    st.builds(lambda number, index, body: rows.partition(number, index, **body), NUMBERS, st.integers(0, 1), PARTITION),
    st.builds(lambda number, index, body: rows.change(number, index, **body), NUMBERS, st.integers(0, 1), PARTITION),
    st.builds(rows.removal, NUMBERS),
    st.builds(lambda name: ("ClearElr", {"TopicName": name}), st.sampled_from(["", "a"])),
    st.builds(rows.config, st.sampled_from([2, 4]), st.sampled_from("ab"), KEYS, st.sampled_from([None, "", "1"])),
    st.builds(rows.quota, KEYS, st.sampled_from([None, 0.5, 2.0]), NAMES),
    st.builds(rows.acl, NUMBERS, Host=st.sampled_from(["*", "h"]), Operation=st.integers(0, 15)),
    st.builds(rows.no_acl, NUMBERS),
    st.builds(rows.credential, st.sampled_from("ab"), st.integers(1, 2), NUMBERS),
    st.builds(
        lambda name, kind: ("RemoveUserScramCredential", {"Name": name, "Mechanism": kind}),
        st.sampled_from("ab"), st.integers(1, 2),
    ),
    st.builds(rows.token, st.sampled_from("tu"), ExpirationTimestamp=NUMBERS),
    st.builds(lambda name: ("RemoveDelegationToken", {"TokenId": name}), st.sampled_from("tu")),
    st.builds(rows.producer_ids, NUMBERS),
    st.builds(rows.feature, st.sampled_from(["group.version", "kraft.version"]), st.integers(0, 2)),
    st.builds(lambda number, body: rows.broker(number, **body), NUMBERS, BROKER),
    st.builds(rows.controller, NUMBERS),
    st.builds(
        lambda kind, number, epoch: (kind, {"Id": number, "Epoch": epoch}),
        st.sampled_from(["FenceBroker", "UnfenceBroker"]), NUMBERS, EPOCH,
    ),
    st.builds(
        lambda number, epoch, body: ("BrokerRegistrationChange", {"BrokerId": number, "BrokerEpoch": epoch, **body}),
        NUMBERS, EPOCH, CHANGED_BROKER,
    ),
    st.builds(lambda number: ("UnregisterBroker", {"BrokerId": number, "BrokerEpoch": 1}), NUMBERS),
)  # fmt: skip
FIRST = (rows.feature("metadata.version", 30), rows.feature("eligible.leader.replicas.version", 1))


def accepted(image: MetadataImage, row: Row) -> bool:
    """Return whether the row may be the next one in a log."""
    try:
        rows.after(row, image=image)
    except MetadataReplayError:
        return False
    return True


@settings(max_examples=150, deadline=None)
@given(st.lists(ROWS, max_size=60), st.integers(1, 20))
def test_the_image_depends_on_the_records_alone(candidates: list[Row], size: int) -> None:
    """One delta for each record, one for several, one for all, and a snapshot result in the same image.

    A delta does not change the image before it.
    """
    image = rows.after(*FIRST)
    log = list(FIRST)
    for row in candidates:
        if accepted(image, row):
            before = repr(image)
            new = rows.after(row, image=image)
            assert repr(image) == before
            image = new
            log.append(row)
    in_parts = EMPTY_IMAGE
    for start in range(0, len(log), size):
        in_parts = rows.after(*log[start : start + size], image=in_parts)
    assert in_parts == image
    assert rows.after(*log) == image
    delta = MetadataDelta(EMPTY_IMAGE)
    for record in read((record.name.removesuffix("Record"), record.body) for record in records_of(image, 30)):
        delta.replay(record)
    assert delta.apply(image.offset, image.epoch) == image
    assert {topic.topic_id: topic for topic in image.topics.values()} == image.topics_by_id
    for earlier in (EMPTY_IMAGE, rows.after(*log[:size])):  # a snapshot replaces the image of a member
        assert MetadataDelta.between(earlier, image).apply(image.offset, image.epoch) == image

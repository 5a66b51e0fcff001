"""Topic config compression.type: every producer's codec to every stored codec, and refusals."""

import itertools
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kbroker.log._partition_log import PartitionLog
from kbroker.protocol.records import CompressionType, Record, build_batch, iter_batches
from tests.support import wire
from tests.support.log_files import NOW_MS, batch, crc_ok, open_log, read_all, with_field

CODECS = list(CompressionType)
BLOBS = st.one_of(st.none(), st.binary(max_size=300), st.integers(0, 40_000).map(lambda size: b"ab" * size))
RECORDS = st.builds(
    Record,
    key=BLOBS,
    value=BLOBS,
    timestamp_ms=st.integers(NOW_MS - 10_000, NOW_MS),
    headers=st.lists(st.tuples(st.text(max_size=5), st.one_of(st.none(), st.binary(max_size=9))), max_size=3),
)


def of_type(folder: Path, name: str, **more: str) -> PartitionLog:
    return open_log(folder, config={"compression.type": name, **more})


def stored(log: PartitionLog) -> bytes:
    (only,) = read_all(log)
    return only


@pytest.mark.parametrize(("source", "target"), list(itertools.product(CODECS, CODECS)))
def test_stored_in_the_topics_codec(tmp_path: Path, source: CompressionType, target: CompressionType) -> None:
    """The stored batch has the topic's codec, the producer's records and header fields, and a valid checksum."""
    log = of_type(tmp_path / "t-0", target.config_name)
    records = [
        Record(b"k%d" % n, b"v" * n * 90, NOW_MS + n, [("h", b"x"), ("n", None)] if n % 2 else []) for n in range(90)
    ]
    sent = build_batch(records, compression=source, producer_id=7, producer_epoch=1, base_sequence=3)
    result = log.append(sent)
    assert (result.error, result.base_offset, result.last_offset) == (0, 0, 89)
    data = stored(log)
    (there,), (given_,) = list(iter_batches(data)), list(iter_batches(sent))
    assert crc_ok(data)
    assert there.compression == target
    assert there.records() == given_.records()
    for name in ("producer_id", "producer_epoch", "base_timestamp_ms", "max_timestamp_ms", "record_count"):
        assert getattr(there, name) == getattr(given_, name)
    if source == target:
        assert data[61:] == sent[61:]


@given(
    records=st.lists(RECORDS, min_size=1, max_size=8),
    source=st.sampled_from(CODECS),
    target=st.sampled_from(CODECS),
    stamp=st.booleans(),
)
@settings(max_examples=120, deadline=None)
def test_records_stay_what_they_are(
    records: list[Record], source: CompressionType, target: CompressionType, stamp: bool
) -> None:
    """Recompression keeps keys, values, headers and timestamps."""
    config = {"compression.type": target.config_name, "max.message.bytes": 1 << 22}
    if stamp:
        config["message.timestamp.type"] = "LogAppendTime"
    log = open_log(None, config=config, in_memory=True)
    assert log.append(build_batch(records, compression=source)).error == 0
    data = stored(log)
    (there,) = list(iter_batches(data))
    assert crc_ok(data)
    assert there.compression == target
    assert there.is_log_append_time == stamp
    for kept, (_, timestamp_ms, key, value, headers) in zip(records, there.records(), strict=True):
        assert (key, value, headers) == (kept.key, kept.value, list(kept.headers))
        assert timestamp_ms == (there.max_timestamp_ms if stamp else kept.timestamp_ms)


@pytest.mark.parametrize("target", ["gzip", "uncompressed"])
def test_a_duplicate_is_still_one(tmp_path: Path, target: str) -> None:
    """A duplicate of an idempotent producer gets the first append's offsets in spite of recompression."""
    log = of_type(tmp_path / "t-0", target)
    sent = batch(b"a", b"b", compression=CompressionType.LZ4, producer_id=5, producer_epoch=0, base_sequence=0)
    assert log.append(sent).base_offset == 0
    again = log.append(sent)
    assert (again.error, again.is_duplicate, again.base_offset, again.last_offset) == (0, True, 0, 1)
    assert log.log_end_offset == 2


def test_the_size_counts_again_in_the_topics_codec(tmp_path: Path) -> None:
    """A batch that exceeds the limit in the topic's codec gets MESSAGE_TOO_LARGE, and nothing is written."""
    log = of_type(tmp_path / "t-0", "uncompressed", **{"max.message.bytes": "500"})
    sent = batch(b"x" * 5000, compression=CompressionType.ZSTD)
    assert len(sent) < 500
    result = log.append(sent)
    assert (result.error, result.base_offset, result.log_start_offset, log.size_bytes) == (10, -1, -1, 0)


def test_a_batch_above_the_limit_is_refused_even_if_it_would_shrink(tmp_path: Path) -> None:
    """The size check applies to the received batch before recompression."""
    log = of_type(tmp_path / "t-0", "gzip", **{"max.message.bytes": "500"})
    assert log.append(batch(b"x" * 5000)).error == 10


def crooked(**how: Any) -> bytes:
    """Return two records with the offsets 0 and 7."""
    rows = [Record(None, b"a", NOW_MS, (), 0), Record(b"k", b"b", NOW_MS + 4, [("h", None)], 7)]
    return with_field(build_batch(rows, **how), 23, 4, 1)


def late_records(base_ms: int, *deltas_ms: int) -> bytes:
    rows = b"".join(wire.record(n, b"v", timestamp_delta=delta) for n, delta in enumerate(deltas_ms))
    count = len(deltas_ms)
    return wire.batch(records=rows, count=count, last_offset_delta=count - 1, timestamp_ms=base_ms)


def test_wrong_inner_offsets_are_corrected_in_another_codec(tmp_path: Path) -> None:
    """Kafka stores a gap between the offsets of plain records, and none in a batch that it builds in another codec."""
    log = of_type(tmp_path / "t-0", "producer")
    assert log.append(crooked()).error == 0
    assert [row[0] for row in next(iter_batches(stored(log))).records()] == [0, 7]
    for source, target in ((0, "gzip"), (1, "uncompressed"), (1, "zstd")):
        log = of_type(tmp_path / f"{source}-{target}-0", target)
        assert log.append(crooked(compression=CompressionType(source))).error == 0
        (there,) = iter_batches(stored(log))
        assert there.is_crc_valid
        assert there.records() == [(0, NOW_MS, None, b"a", []), (1, NOW_MS + 4, b"k", b"b", [("h", None)])]


@pytest.mark.parametrize("kind", ["gzip", "producer"])
def test_wrong_inner_offsets_are_refused_in_the_same_codec(tmp_path: Path, kind: str) -> None:
    """Kafka has read only offsets and times of such records, and cannot rebuild the batch."""
    log = of_type(tmp_path / "t-0", kind)
    assert (log.append(crooked(compression=CompressionType.GZIP)).error, log.log_end_offset) == (-1, 0)


def test_base_timestamp_is_that_of_the_first_record(tmp_path: Path) -> None:
    """A batch that is built in another codec begins with the time of its first record, as Kafka builds it."""
    log = of_type(tmp_path / "t-0", "gzip")
    assert log.append(late_records(NOW_MS, 5, 3)).error == 0
    (there,) = iter_batches(stored(log))
    assert (there.base_timestamp_ms, there.max_timestamp_ms) == (NOW_MS + 5, NOW_MS + 5)
    assert [row[:2] for row in there.records()] == [(0, NOW_MS + 5), (1, NOW_MS + 3)]


@pytest.mark.parametrize(
    "sent",
    [late_records(0, -9, 0), with_field(batch(b"a"), 21, 2, 16)],
    ids=["time below -1", "transaction without a producer"],
)
def test_what_kafka_cannot_build_is_refused_only_in_another_codec(tmp_path: Path, sent: bytes) -> None:
    """A time below -1, and a transaction without a producer, can be stored only as they are."""
    assert of_type(tmp_path / "t-0", "producer").append(sent).error == 0
    assert of_type(tmp_path / "t-1", "gzip").append(sent).error == -1


def test_internal_appends_of_several_batches(tmp_path: Path) -> None:
    """Batches appended together are one append and are recompressed; control records are stored unchanged."""
    log = of_type(tmp_path / "t-0", "gzip")
    together = batch(b"a", b"b") + batch(b"d", compression=CompressionType.GZIP) + batch(b"e" * 4000)
    result = log.append(together, is_client=False)
    assert (result.error, result.base_offset, result.last_offset) == (0, 0, 3)
    control = with_field(batch(b"c", producer_id=1, producer_epoch=0), 21, 2, 32)
    assert log.append(control, is_client=False).base_offset == 4
    found = [next(iter_batches(data)) for data in read_all(log)]
    assert [(one.base_offset, one.compression, one.is_control) for one in found] == [
        (0, 1, False), (2, 1, False), (3, 1, False), (4, 0, True)
    ]  # fmt: skip
    assert all(one.is_crc_valid for one in found)
    bad = log.append(batch(b"a") + with_field(batch(b"x"), 17, 4, 1, fix_crc=False), is_client=False)
    assert bad.error == 2


def test_levels(tmp_path: Path) -> None:
    """compression.<codec>.level applies to the topic's codec, and higher levels make smaller batches."""
    words = (b"topic", b"partition", b"offset", b"leader", b"epoch", b"record", b"batch", b"segment")
    text = b" ".join(words[n * n * n % 8191 % 8] + b"%d" % (n * n % 97) for n in range(20_000))
    for codec, weak, strong in (("gzip", "1", "9"), ("lz4", "1", "12"), ("zstd", "-50", "19")):
        sizes = []
        for level in (weak, strong):
            log = of_type(tmp_path / f"{codec}{level}-0", codec, **{f"compression.{codec}.level": level})
            assert log.append(batch(text)).error == 0
            sizes.append(log.size_bytes)
        assert sizes[1] < sizes[0], codec


def test_the_codec_changes_while_the_log_is_open(tmp_path: Path) -> None:
    """A changed compression.type applies to the next append."""
    log = of_type(tmp_path / "t-0", "producer")
    log.append(batch(b"a"))
    log.update_config({"compression.type": "zstd"})
    log.append(batch(b"b"))
    assert [next(iter_batches(data)).compression for data in read_all(log)] == [0, 4]


def test_an_unknown_codec_is_no_setting(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="brotli"):
        of_type(tmp_path / "t-0", "brotli")

"""State files of a log folder in Kafka's formats, written atomically and read strictly.

Threads: reading and writing functions may run on any thread; a ``CheckpointFile`` serializes its own writers.
Source: ``CheckpointFile``, ``OffsetCheckpointFile``, ``PartitionMetadataFile``, ``PropertiesUtils``.
"""

import binascii
import os
import re
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Generic, NamedTuple, TypeVar

from kbroker._core.codec.crc32c import crc32c
from kbroker.common.configs.config_def import INT64_MAX
from kbroker.common.errors import UserError
from kbroker.common.topic_names import TopicPartition

RECOVERY_POINT_CHECKPOINT = "recovery-point-offset-checkpoint"
LOG_START_CHECKPOINT = "log-start-offset-checkpoint"
HIGH_WATERMARK_CHECKPOINT = "replication-offset-checkpoint"
CLEANER_OFFSET_CHECKPOINT = "cleaner-offset-checkpoint"
#: Checkpoints of a log folder with an offset for each partition.
OFFSET_CHECKPOINTS = (
    RECOVERY_POINT_CHECKPOINT,
    LOG_START_CHECKPOINT,
    HIGH_WATERMARK_CHECKPOINT,
    CLEANER_OFFSET_CHECKPOINT,
)
LEADER_EPOCH_CHECKPOINT = "leader-epoch-checkpoint"
TXN_INDEX_CHECKPOINT = "txnindex-checkpoint"
TXN_ENTRY_BYTES = 34
PARTITION_METADATA = "partition.metadata"
MOVED_FROM = "kbroker-moved-from"
META_PROPERTIES = "meta.properties"
STATE_FILE_MAX_BYTES = 64 << 20  # enough for a million partitions

K = TypeVar("K")


class CorruptFileError(UserError, OSError):
    """A damaged state file; the message names the file, the line and the fault."""


class MetaPropertiesMismatch(ValueError):
    """Folder that belongs to another cluster or node."""


def sync_descriptor(fd: int) -> None:
    """Force a file to the disk itself (on macOS ``fsync`` stops at the drive's cache)."""
    if sys.platform == "darwin":
        import fcntl

        fcntl.fcntl(fd, fcntl.F_FULLFSYNC)
    else:
        os.fsync(fd)


def sync_folder(folder: Path) -> None:
    """Make the names in a folder durable; no effect on Windows."""
    if sys.platform == "win32":
        return
    fd = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def write_atomically(path: Path, data: bytes | Iterable[bytes], suffix: str = ".tmp") -> None:
    """Write a file so that a crash leaves the old content or the new one: temporary file, sync, rename, sync of folder.

    Args: ``data``: may be produced while it is written; ``suffix``: end of the temporary file's name.
    Raises: OSError, and the errors of ``data``; the old file is then unchanged and no temporary file is left, unless
    removing it failed too. If only the folder's sync fails, the new file stands, but a power cut may undo it.
    """
    temporary = path.with_name(path.name + suffix)
    try:
        with temporary.open("wb") as f:
            f.writelines((data,) if isinstance(data, bytes) else data)
            f.flush()
            sync_descriptor(f.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def read_text(path: Path) -> str | None:
    """Return the content, None when the file does not exist. Raises: CorruptFileError, OSError."""
    try:
        with path.open("rb") as f:
            data = f.read(STATE_FILE_MAX_BYTES + 1)
    except FileNotFoundError:
        return None
    if len(data) > STATE_FILE_MAX_BYTES:
        raise CorruptFileError(f"{path}: larger than {STATE_FILE_MAX_BYTES} bytes")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as e:
        raise CorruptFileError(f"{path}: not UTF-8 text at byte {e.start}") from None


_DECIMAL = re.compile(r"-?[0-9]{1,19}\Z")


def _decimal(text: str, bits: int) -> int:
    if not _DECIMAL.match(text):
        raise ValueError(f"not a number: {text!r}")
    value = int(text)
    if not -(1 << bits - 1) <= value < 1 << bits - 1:
        raise ValueError(f"does not fit {bits} bits: {text}")
    return value


class CheckpointFile(Generic[K]):
    """Kafka's checkpoint text format: version, number of entries, one space-separated entry per line.

    Args: ``path`` of the file; ``format_key`` returns the fields of a line before its offset; ``parse_key`` converts
    them back, or raises ValueError.
    Attributes: ``offsets``: as last read or written; empty before.
    """

    VERSION = 0

    def __init__(
        self, path: Path, format_key: Callable[[K], Iterable[object]], parse_key: Callable[[list[str]], K]
    ) -> None:
        self.path = Path(path)
        self.offsets: Mapping[K, int] = {}
        self._format_key = format_key
        self._parse_key = parse_key
        self._lock = threading.Lock()

    def write(self, offsets: Mapping[K, int]) -> None:
        """Replace the file's content. Raises: OSError."""
        lines = [" ".join(map(str, (*self._format_key(key), offset))) for key, offset in offsets.items()]
        text = "\n".join([str(self.VERSION), str(len(lines)), *lines]) + "\n"
        with self._lock:
            write_atomically(self.path, text.encode())
            self.offsets = offsets

    def read(self) -> dict[K, int]:
        """Return the entries, and keep them as ``offsets``; none, without that, when the file is absent or empty.

        Raises: CorruptFileError, OSError.
        """
        text = read_text(self.path)
        if not text:
            return {}
        lines = text.splitlines()
        try:
            if _decimal(lines[0], 32) != self.VERSION:
                raise self._corrupt(1, f"expected version {self.VERSION}, found {lines[0]}")
            expected = _decimal(lines[1], 32) if len(lines) > 1 else -1
        except ValueError as e:
            raise self._corrupt(1, str(e)) from None
        if expected < 0 or expected != len(lines) - 2:
            raise self._corrupt(2, f"expected {expected} entries, found {max(0, len(lines) - 2)}")
        entries: dict[K, int] = {}
        for number, line in enumerate(lines[2:], 3):
            fields = line.split()
            try:
                if not fields:
                    raise ValueError("empty")
                key, offset = self._parse_key(fields[:-1]), _decimal(fields[-1], 64)
            except ValueError as e:
                raise self._corrupt(number, f"malformed line {line[:80]!r}: {e}") from None
            if key in entries:
                raise self._corrupt(number, f"second entry of {key}")
            entries[key] = offset
        self.offsets = entries
        return entries

    def _corrupt(self, line: int, fault: str) -> CorruptFileError:
        return CorruptFileError(f"{self.path}, line {line}: {fault}")


def _parse_topic_partition(fields: list[str]) -> TopicPartition:
    if len(fields) != 2:
        raise ValueError("expected topic, partition, offset")
    partition = _decimal(fields[1], 32)
    if partition < 0:
        raise ValueError("negative partition")
    return fields[0], partition


def _parse_epoch(fields: list[str]) -> int:
    if len(fields) != 1:
        raise ValueError("expected epoch, start offset")
    return _decimal(fields[0], 32)


def offset_checkpoint(path: Path) -> CheckpointFile[TopicPartition]:
    """Return the file of offsets per (topic, partition): recovery points, log starts, high watermarks."""
    return CheckpointFile(path, lambda key: key, _parse_topic_partition)


def leader_epoch_checkpoint(path: Path) -> CheckpointFile[int]:
    """Return the file of start offsets per leader epoch of one partition."""
    return CheckpointFile(path, lambda epoch: (epoch,), _parse_epoch)


def read_leader_epochs(folder: str | Path) -> list[tuple[int, int]]:
    """Return the entries of a partition's leader-epoch-checkpoint; a missing or unreadable file has none."""
    try:
        entries = leader_epoch_checkpoint(Path(folder) / LEADER_EPOCH_CHECKPOINT).read()
    except OSError:
        return []
    return list(entries.items()) if all(min(entry) >= 0 for entry in entries.items()) else []


def read_txn_checkpoint(folder: str | Path) -> tuple[int, dict[int, tuple[int, int]], int]:
    """Read the checksums of a partition's transaction indexes; a missing or unreadable file covers no segment.

    Returns: the end (segments that begin at or after it are not covered); by base offset the number of entries and the
    CRC-32C of each covered index that is not empty; the CRC-32C of the file, -1 when it is missing.
    """
    try:
        with open(os.path.join(folder, TXN_INDEX_CHECKPOINT), "rb") as file:
            data = file.read()
    except OSError:
        return 0, {}, -1
    crc = crc32c(data)
    try:
        version, end, *lines = data.decode("ascii").splitlines()
        rows = [tuple(int(field) for field in line.split()) for line in lines]
        sums = {base: (count, sum_) for base, count, sum_ in rows}
        if version != "0" or any(not (0 <= count < 1 << 31 and 0 <= sum_ < 1 << 32) for count, sum_ in sums.values()):
            raise ValueError("not the checkpoint of transaction indexes")
        return min(int(end), INT64_MAX), sums, crc
    except ValueError:
        return 0, {}, crc


def txn_index_sum(segment: Path) -> tuple[int, int]:
    """Return the number of entries and the CRC of a segment's .txnindex, as in the checkpoint. Raises: OSError."""
    path = segment.with_suffix(".txnindex")
    data = path.read_bytes() if path.exists() else b""
    return len(data) // TXN_ENTRY_BYTES, crc32c(data)


# -- meta.properties ---------------------------------------------------------------------------------------------------


def uuid_to_text(value: uuid.UUID) -> str:
    """Return Kafka's text form of an id: base64 of its 16 bytes, URL alphabet, no padding."""
    text = binascii.b2a_base64(value.bytes, newline=False).decode()
    return text.rstrip("=").replace("+", "-").replace("/", "_")


def random_uuid_text() -> str:
    """Return a random id as text; like Kafka's it does not begin with a dash, which would start an option."""
    while True:
        text = uuid_to_text(uuid.uuid4())
        if not text.startswith("-"):
            return text


def uuid_from_text(text: str) -> uuid.UUID:
    """Parse Kafka's text form of an id. Raises: ValueError."""
    if not re.fullmatch(r"[A-Za-z0-9_-]{22}", text):
        raise ValueError(f"not an id of 22 base64 characters: {text[:40]!r}")
    return uuid.UUID(bytes=binascii.a2b_base64(text.replace("-", "+").replace("_", "/") + "=="))


class MetaProperties(NamedTuple):
    """Owner of a log folder (``meta.properties``). ``version`` 0: Kafka used the folder with ZooKeeper."""

    cluster_id: str
    node_id: int
    directory_id: uuid.UUID | None = None
    version: int = 1

    def check(self, cluster_id: str | None, node_id: int, folder: Path) -> None:
        """Check the owner. Raises: MetaPropertiesMismatch, when the folder has another node or cluster (None: any)."""
        path = folder / META_PROPERTIES
        if cluster_id is not None and cluster_id != self.cluster_id:
            raise MetaPropertiesMismatch(
                f"Invalid cluster.id in: {path}. Expected {cluster_id}, but read {self.cluster_id}"
            )
        if node_id != self.node_id:
            raise MetaPropertiesMismatch(
                f"Stored node id {self.node_id} doesn't match previous node id {node_id} in {path}. If you moved your "
                "data, make sure your configured node id matches. If you intend to create a new node, you should "
                "remove all data in your data directories."
            )


def write_meta_properties(folder: Path, properties: MetaProperties, now_ms: int | None = None) -> None:
    """Write the owner of a folder, as version 1; with the time ``now_ms`` the bytes are those that Kafka writes.

    Raises: OSError; ValueError for a cluster id with control characters.
    """
    if not properties.cluster_id.isprintable():
        raise ValueError(f"cluster id with unprintable characters: {properties.cluster_id!r}")
    date = "" if now_ms is None else time.strftime("%a %b %d %H:%M:%S %Z %Y", time.localtime(now_ms / 1000))
    lines = ["#", f"#{date}"] if date else []
    lines.append(f"node.id={properties.node_id}")
    if properties.directory_id is not None:
        lines.append(f"directory.id={uuid_to_text(properties.directory_id)}")
    lines += ["version=1", "cluster.id=" + re.sub(r"[\\=:#!]|^ ", r"\\\g<0>", properties.cluster_id)]
    write_atomically(folder / META_PROPERTIES, ("\n".join(lines) + "\n").encode())


def read_meta_properties(folder: Path) -> MetaProperties | None:
    """Return the folder's owner, None when it has none yet. Version 0 (``broker.id``) is accepted too.

    Raises: CorruptFileError, OSError.
    """
    path = folder / META_PROPERTIES
    text = read_text(path)
    if text is None:
        return None
    values: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.lstrip().startswith(("#", "!")):
            continue
        key, separator, value = line.partition("=")
        if not separator:
            raise CorruptFileError(f"{path}, line {number}: expected key=value")
        values[key.strip()] = re.sub(r"\\(.)", r"\1", value.strip())
    version = values.get("version", "0")
    if version not in ("0", "1"):
        raise CorruptFileError(f"{path}: expected version 0 or 1, found {version}")
    try:
        node_id = _decimal(values["node.id" if version == "1" else "broker.id"], 32)
        directory_id = uuid_from_text(values["directory.id"]) if "directory.id" in values else None
        return MetaProperties(values["cluster.id"], node_id, directory_id, int(version))
    except KeyError as e:
        raise CorruptFileError(f"{path}: no {e.args[0]}") from None
    except ValueError as e:
        raise CorruptFileError(f"{path}: {e}") from None


# -- kbroker-moved-from ------------------------------------------------------------------------------------------------


def write_moved_from(folder: Path, sources: Iterable[uuid.UUID]) -> None:
    """Note in a partition's folder that it replaces the partition's folders in other log folders.

    A crash may leave several folders: the one with the note is complete, and the others are out of date.
    Raises: OSError.
    """
    lines = ["version: 0", *(f"directory_id: {uuid_to_text(source)}" for source in sources)]
    write_atomically(folder / MOVED_FROM, ("\n".join(lines) + "\n").encode())


def read_moved_from(folder: Path) -> list[uuid.UUID]:
    """Return the ids of the log folders that the partition was moved from, the latest first; none without a note.

    Raises: CorruptFileError, OSError.
    """
    path = folder / MOVED_FROM
    text = read_text(path)
    if text is None:
        return []
    version, *lines = text.strip().split("\n")
    try:
        if version != "version: 0" or not lines or not all(line.startswith("directory_id: ") for line in lines):
            raise ValueError("expected the lines 'version: 0' and 'directory_id: ID'")
        return [uuid_from_text(line.removeprefix("directory_id: ")) for line in lines]
    except ValueError as e:
        raise CorruptFileError(f"{path}: {e}") from None


# -- partition.metadata ------------------------------------------------------------------------------------------------


def partition_metadata_text(topic_id: uuid.UUID) -> bytes:
    """Return the content of partition.metadata, without Kafka's line break at the end."""
    return f"version: 0\ntopic_id: {uuid_to_text(topic_id)}".encode()


def write_partition_metadata(folder: Path, topic_id: uuid.UUID, *, is_synced: bool = False) -> None:
    """Write the topic id of a folder. Raises: OSError.

    In a new folder the file is on disk with the first flushed records; until then an empty file counts as none.
    """
    with open(folder / PARTITION_METADATA, "wb") as file:
        file.write(partition_metadata_text(topic_id))
        if is_synced:
            file.flush()
            sync_descriptor(file.fileno())


def claim_partition_folder(folder: Path, topic_id: uuid.UUID) -> None:
    """Write the topic id of a folder whose log is opened without a manager; a damaged file is replaced, not by id 0.

    Raises: ValueError when the folder belongs to another topic (id 0 matches any); OSError.
    """
    path = folder / PARTITION_METADATA
    found = None
    try:
        found = read_partition_metadata(folder)
    except CorruptFileError:
        if topic_id.int == 0:
            return  # there is nothing to replace it with
    if found is None:
        temporary = path.with_name(path.name + ".tmp")
        temporary.write_bytes(partition_metadata_text(topic_id) + b"\n")
        temporary.replace(path)
    elif found != topic_id and found.int != 0 and topic_id.int != 0:
        raise ValueError(
            f"{path} belongs to topic id {uuid_to_text(found)}, not {uuid_to_text(topic_id)}; remove that file if the "
            "other files are those of the topic, and the next start writes it anew"
        )


def read_partition_metadata(folder: Path) -> uuid.UUID | None:
    """Return the topic id, None when the file does not exist or a power loss left it empty.

    Raises: CorruptFileError, OSError.
    """
    path = folder / PARTITION_METADATA
    text = read_text(path)
    if text is None or not text.strip("\0\r\n "):
        return None
    lines = [[part.strip() for part in line.split(":", 1)] for line in text.splitlines() if line.strip()]
    if len(lines) != 2 or lines[0] != ["version", "0"] or lines[1][0] != "topic_id":
        raise CorruptFileError(f"{path}: expected the lines 'version: 0' and 'topic_id: ID'")
    try:
        return uuid_from_text(lines[1][-1])
    except ValueError as e:
        raise CorruptFileError(f"{path}: {e}") from None

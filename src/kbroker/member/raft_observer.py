"""Node that follows the quorum of controllers without a vote: its next request, and the effect of a response.

Source: ``KafkaRaftClient`` (``pollFollowerAsObserver``, ``handleFetchResponse``, ``handleFetchSnapshotResponse``),
``RequestManager``; spec: KIP-595, KIP-630, KIP-853.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple
from uuid import UUID

from kbroker.client.connection import Address, format_address
from kbroker.common.errors import Errors, ProtocolError
from kbroker.common.loggers import get_logger
from kbroker.common.topic_names import CLUSTER_METADATA_TOPIC
from kbroker.metadata.log.metadata_log import TOPIC_ID, SnapshotFile
from kbroker.metadata.log.quorum_state import QuorumState
from kbroker.protocol._records import corrupt
from kbroker.protocol.codec import Body

if TYPE_CHECKING:
    from kbroker.member.follower_log import FollowerLog, SnapshotDownload

logger = get_logger(__name__)

FETCH, FETCH_SNAPSHOT = 1, 59
FETCH_VERSIONS, FETCH_SNAPSHOT_VERSIONS = (16, 18), (0, 1)  # before 16 a response lacks the addresses of nodes
FETCH_MAX_WAIT_MS = 500
NO_LEADER = -1
NO_OFFSET = -1
RECONNECT_BACKOFF_MS, RECONNECT_BACKOFF_MAX_MS = 50, 500  # as in KafkaRaftManager, doubled with each failure
MAX_HOST_LENGTH = 255  # of a name in DNS


class RaftFatalError(Exception):
    """Failure after which the node can no longer follow the quorum; the message has the reason."""


class QuorumSettings(NamedTuple):
    """Identity of the node, and the configs ``controller.quorum.*``."""

    node_id: int
    directory_id: UUID
    cluster_id: str
    bootstrap: Sequence[Address]
    voters: Mapping[int, Address]
    request_timeout_ms: int
    retry_backoff_ms: int
    fetch_timeout_ms: int
    fetch_max_bytes: int
    fetch_snapshot_max_bytes: int


class Send(NamedTuple):
    """A request to send, the only one until its response or failure."""

    address: Address
    api_key: int
    versions: tuple[int, int]
    body: Body
    timeout_ms: int


class Wait(NamedTuple):
    """Pause without a request."""

    ms: int


class RaftObserver:
    """An observer of the quorum. Threads: one at a time; the attributes may be read from any.

    Args: ``write_state`` writes ``quorum-state`` durably before the observer acts in an epoch; ``on_snapshot`` is
    called when a fetched snapshot has replaced the log.
    Attributes:
        epoch, leader_id: of the quorum; NO_LEADER while unknown.
        high_watermark: end of the committed records of the log, NO_OFFSET before the first response of a leader.
        last_error: the latest reason why nothing could be fetched, "" after a success.
        fetched_ms: time of the last success by the clock, NO_OFFSET before.
    """

    def __init__(
        self,
        settings: QuorumSettings,
        log: FollowerLog,
        write_state: Callable[[QuorumState], None],
        on_snapshot: Callable[[SnapshotFile], None],
    ) -> None:
        self._settings = settings
        self._log = log
        self._write_state = write_state
        self._on_snapshot = on_snapshot
        self.leader_id, self.epoch = NO_LEADER, log.read_quorum_state().leader_epoch
        self.high_watermark = NO_OFFSET
        self.last_error = ""
        self.fetched_ms = NO_OFFSET
        self._leader: Address | None = None
        self._nodes: dict[int, Address] = dict(settings.voters)
        self._bootstrap = list(dict.fromkeys([*settings.bootstrap, *settings.voters.values()]))
        self._turn = 0  # of the next bootstrap server
        self._backing_off: dict[Address, int] = {}  # end of the pause, by address
        self._reconnect_ms: dict[Address, int] = {}  # latest pause before a new connection, until a response
        self._download: SnapshotDownload | None = None
        self._has_news = False  # a newer epoch or leader since the last success

    @property
    def leader_address(self) -> Address | None:
        """Address of the quorum's leader, None while it is unknown."""
        return self._leader

    @property
    def leader(self) -> tuple[int, Address] | None:
        """Id and address of the quorum's leader, None while they are unknown."""
        address = self._leader
        return None if address is None else (self.leader_id, address)

    # ------------------------------------------------------------ requests

    def next(self, now_ms: int) -> Send | Wait:
        """Return the next request: to the leader; while it is unknown or fails, to a bootstrap server.

        While all of them back off, return the wait for the first.
        """
        leader = self._leader
        if leader is not None and self._backing_off.get(leader, 0) <= now_ms:
            if self._download is not None:
                body = self._snapshot_request(self._download)
                return self._send(leader, FETCH_SNAPSHOT, FETCH_SNAPSHOT_VERSIONS, body)
            return self._send(leader, FETCH, FETCH_VERSIONS, self._fetch_request())
        for _ in self._bootstrap:
            address = self._bootstrap[self._turn % len(self._bootstrap)]
            self._turn += 1
            if self._backing_off.get(address, 0) <= now_ms:
                return self._send(address, FETCH, FETCH_VERSIONS, self._fetch_request())
        return Wait(min(until for until in self._backing_off.values() if until > now_ms) - now_ms)

    def _send(self, address: Address, api_key: int, versions: tuple[int, int], body: Body) -> Send:
        settings = self._settings
        return Send(address, api_key, versions, body, min(settings.request_timeout_ms, settings.fetch_timeout_ms))

    def _fetch_request(self) -> Body:
        settings, log = self._settings, self._log
        partition = {
            "Partition": 0,
            "CurrentLeaderEpoch": self.epoch,
            "FetchOffset": log.end_offset,
            "LastFetchedEpoch": log.last_epoch,
            "ReplicaDirectoryId": settings.directory_id,
            "HighWatermark": self.high_watermark,
        }
        return {
            "ClusterId": settings.cluster_id,
            "ReplicaState": {"ReplicaId": settings.node_id, "ReplicaEpoch": -1},
            "MaxWaitMs": FETCH_MAX_WAIT_MS,
            "MinBytes": 0,
            "MaxBytes": settings.fetch_max_bytes,
            "Topics": [{"TopicId": TOPIC_ID, "Partitions": [partition]}],
        }

    def _snapshot_request(self, download: SnapshotDownload) -> Body:
        settings, target = self._settings, download.target
        partition = {
            "Partition": 0,
            "CurrentLeaderEpoch": self.epoch,
            "SnapshotId": {"EndOffset": target.end_offset, "Epoch": target.epoch},
            "Position": download.size_bytes,
            "ReplicaDirectoryId": settings.directory_id,
        }
        return {
            "ClusterId": settings.cluster_id,
            "ReplicaId": settings.node_id,
            "MaxBytes": settings.fetch_snapshot_max_bytes,
            "Topics": [{"Name": CLUSTER_METADATA_TOPIC, "Partitions": [partition]}],
        }

    # ------------------------------------------------------------ responses

    def on_failure(self, sent: Send, reason: str, now_ms: int) -> None:
        """Note a request that got no response, or a useless one."""
        self._back_off(sent, reason, now_ms, self._settings.retry_backoff_ms)

    def on_disconnect(self, sent: Send, reason: str, now_ms: int) -> None:
        """Note a request for which no connection could be made, or whose connection has failed.

        The pause grows, so that a node that stays down does not cost a connection every ``retry_backoff_ms``.
        """
        before_ms = self._reconnect_ms.get(sent.address, 0)
        after_ms = min(2 * before_ms, RECONNECT_BACKOFF_MAX_MS) if before_ms else RECONNECT_BACKOFF_MS
        self._reconnect_ms[sent.address] = after_ms
        self._back_off(sent, reason, now_ms, max(after_ms, self._settings.retry_backoff_ms))

    def _back_off(self, sent: Send, reason: str, now_ms: int, duration_ms: int) -> None:
        self.last_error = reason
        self._backing_off = {one: until for one, until in self._backing_off.items() if until > now_ms}
        self._backing_off[sent.address] = now_ms + max(1, duration_ms)

    def on_response(self, sent: Send, response: Body, now_ms: int) -> None:
        """Apply a response. Raises: RaftFatalError; OSError, the log cannot be written."""
        self._reconnect_ms.pop(sent.address, None)
        error = Errors.of(response["ErrorCode"])
        topics = response.get("Responses") if sent.api_key == FETCH else response.get("Topics")
        if error is not Errors.NONE or not topics or not topics[0]["Partitions"]:
            self._refused(sent, error if error is not Errors.NONE else Errors.UNKNOWN_SERVER_ERROR, now_ms)
            return
        partition = topics[0]["Partitions"][0]
        error = Errors.of(partition["ErrorCode"])
        leader_id, epoch = partition["CurrentLeader"]["LeaderId"], partition["CurrentLeader"]["LeaderEpoch"]
        try:
            self._note_addresses(response.get("NodeEndpoints") or ())
            if not self._is_current(error, leader_id, epoch, sent, now_ms):
                return
            if error is not Errors.NONE and not (error is Errors.SNAPSHOT_NOT_FOUND and sent.api_key == FETCH_SNAPSHOT):
                self._refused(sent, error, now_ms)
                return
            if sent.api_key == FETCH:
                self._fetched(partition)
            else:
                self._snapshot_fetched(partition, error)
        except OSError:
            self._abandon()
            raise
        except ProtocolError as bad:
            self._abandon()
            self.on_failure(sent, f"controller {format_address(sent.address)}: {bad.message}", now_ms)
            return
        self.last_error = ""
        self.fetched_ms = now_ms
        self._has_news = False
        self._backing_off.clear()

    def _note_addresses(self, nodes: Iterable[Body]) -> None:
        for node in nodes:
            node_id, host, port = node["NodeId"], node["Host"], node["Port"]
            if not 0 < len(host) <= MAX_HOST_LENGTH or not 0 < port < 65536:
                raise corrupt(
                    f"expected the address of controller {node_id}, found a host of {len(host)} characters and port "
                    f"{port}"
                )
            self._nodes[node_id] = (host, port)

    def _is_current(self, error: Errors, leader_id: int, epoch: int, sent: Send, now_ms: int) -> bool:
        """Apply the leader and epoch of a response; return whether its content is from the current leader."""
        address = format_address(sent.address)
        if error is not Errors.NONE and epoch < 0:  # a broker, which has no replica of the metadata log
            self.on_failure(sent, f"{address} responds {error.name}: is it the listener of a controller?", now_ms)
            return False
        if epoch < self.epoch or error is Errors.UNKNOWN_LEADER_EPOCH:  # that node is behind
            self.on_failure(sent, f"{address} is at leader epoch {epoch}", now_ms)
            return False
        stale = (Errors.FENCED_LEADER_EPOCH, Errors.NOT_LEADER_OR_FOLLOWER)
        if epoch > self.epoch or error in stale:
            is_news = epoch > self.epoch or (leader_id != NO_LEADER and self._leader != self._nodes.get(leader_id))
            self._follow(leader_id, epoch)
            if self._has_news or not is_news:  # an election runs, or the leader of this epoch does not respond
                self.on_failure(sent, f"the quorum has no leader that responds in epoch {epoch}", now_ms)
            self._has_news = True
            return False
        if leader_id != NO_LEADER and (self.leader_id == NO_LEADER or self._leader is None):
            self._follow(leader_id, epoch)
        return True

    def _follow(self, leader_id: int, epoch: int) -> None:
        if leader_id == NO_LEADER and epoch == self.epoch:
            return
        if (leader_id, epoch) != (self.leader_id, self.epoch):
            if epoch == self.epoch and NO_LEADER not in (leader_id, self.leader_id):
                raise RaftFatalError(
                    f"the controllers {self.leader_id} and {leader_id} both lead the quorum in epoch {epoch}: check "
                    "that all controllers belong to one cluster"
                )
            self._write_state(QuorumState(leader_id, epoch))
            self.leader_id, self.epoch = leader_id, epoch
            self._abandon()
            logger.info("the quorum has leader %d in epoch %d", leader_id, epoch)
        self._leader = self._nodes.get(leader_id)
        if leader_id != NO_LEADER and self._leader is None:
            raise corrupt(f"no address of controller {leader_id}, the leader of the quorum, is known")

    def _fetched(self, partition: Body) -> None:
        diverging, snapshot = partition["DivergingEpoch"], partition["SnapshotId"]
        if diverging["Epoch"] >= 0:
            self._truncate(diverging["Epoch"], diverging["EndOffset"])
        elif snapshot["Epoch"] >= 0 and snapshot["EndOffset"] >= 0:
            self._begin_snapshot(snapshot["EndOffset"], snapshot["Epoch"])
        else:
            records = partition["Records"]
            if records:
                self._log.append(records, self.epoch)
            self._advance(partition["HighWatermark"])

    def _truncate(self, epoch: int, end_offset: int) -> None:
        if end_offset < 0:
            raise corrupt(f"expected an end offset, found {end_offset}")
        before, end = self._log.end_offset, self._log.end_of_common(epoch, end_offset)
        if end < self.high_watermark:
            raise RaftFatalError(
                f"the leader of the quorum requested truncation to offset {end}, below the high watermark "
                f"{self.high_watermark}: the controllers have lost metadata that was committed"
            )
        self._log.truncate(end)
        end = self._log.end_offset
        if end == before:
            raise corrupt(f"expected a diverging epoch below offset {end}, found epoch {epoch} up to {end_offset}")
        logger.info("cut the metadata log at offset %d", end)

    def _advance(self, high_watermark: int) -> None:
        self.high_watermark = max(self.high_watermark, min(high_watermark, self._log.end_offset))

    # ------------------------------------------------------------ snapshots

    def _begin_snapshot(self, end_offset: int, epoch: int) -> None:
        if (end_offset, epoch) == (self._log.end_offset, self._log.last_epoch):
            raise corrupt(f"expected records from offset {end_offset} on, found the snapshot before them")
        found = self._log.find_snapshot(end_offset, epoch)
        if found is not None:  # only the records after it are missing
            self._replace_log(found)
            return
        self._abandon()  # a part that was fetched before the leader stopped responding
        self._download = self._log.begin_snapshot(end_offset, epoch)
        logger.info("fetching the snapshot of the metadata at offset %d, epoch %d", end_offset, epoch)

    def _snapshot_fetched(self, partition: Body, error: Errors) -> None:
        download, found = self._download, partition["SnapshotId"]
        if download is None:
            return
        if error is not Errors.NONE or found["EndOffset"] < 0 or found["Epoch"] < 0:
            raise corrupt(f"the leader has no snapshot at offset {download.target.end_offset} any more")
        if (found["EndOffset"], found["Epoch"]) != download.target[:2] or partition["Position"] != download.size_bytes:
            raise corrupt("the leader sent another part of a snapshot than the requested one")
        if download.append(partition["UnalignedRecords"] or b"", partition["Size"]):
            snapshot = download.finish()
            self._download = None
            self._replace_log(snapshot)
            logger.info("fetched the snapshot of the metadata at offset %d", snapshot.end_offset)

    def _replace_log(self, snapshot: SnapshotFile) -> None:
        self._on_snapshot(snapshot)  # first, so that a loader that reads the old log ignores the error
        self._log.restart_at(snapshot)
        self.high_watermark = max(self.high_watermark, snapshot.end_offset)

    def _abandon(self) -> None:
        if self._download is not None:
            self._download.abandon()
            self._download = None

    def close(self) -> None:
        """Remove the part of a snapshot that was fetched."""
        self._abandon()

    # ------------------------------------------------------------ failures

    def _refused(self, sent: Send, error: Errors, now_ms: int) -> None:
        text = f"controller {format_address(sent.address)} refuses to send metadata: {error.name}"
        if error is Errors.INCONSISTENT_CLUSTER_ID:
            text += f"; it belongs to another cluster than {self._settings.cluster_id}, the cluster.id of this node"
        elif error is Errors.CLUSTER_AUTHORIZATION_FAILED:
            text += "; the principal of this broker needs the operation ClusterAction on the cluster"
        self._abandon()  # 4.3 fails on its own error response to FetchSnapshot: begin with Fetch
        self.on_failure(sent, text, now_ms)

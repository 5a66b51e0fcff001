"""Metrics of a member: its metadata, its registration, and its channels to the active controller.

Source: ``BrokerServerMetrics``, ``MetadataLoaderMetrics``, ``KafkaRaftMetrics``, ``NodeToControllerChannelManager``.
"""

from __future__ import annotations

from kbroker.member.member import Member
from kbroker.observe.metric_table import Row, Series

BROKER, RAFT = "broker-metadata-metrics", "raft-metrics"
LOADER, SERVER = "kafka.server:MetadataLoader", "kafka.server:KafkaServer"
OWN = "kbroker:member"


def _levels(member: Member) -> Series:
    return [((name,), level) for name, level in sorted(member.metadata.image.features.items())]


def _queues(member: Member) -> Series:
    return [((channel.name.rpartition("-")[2],), channel.queue_size) for channel in member.channels]


ROWS: tuple[Row[Member], ...] = (
    Row(SERVER, "BrokerState",
        "state of the broker: 1 starting, 2 recovery, 3 running, 6 controlled shutdown, 7 shutting down",
        lambda member: member.lifecycle.state),
    Row(BROKER, "last-applied-record-offset", "offset of the last record of the metadata that is in force",
        lambda member: member.metadata.image.offset),
    Row(BROKER, "last-applied-record-timestamp", "time of that record in milliseconds",
        lambda member: member.loader.applied_time_ms),
    Row(BROKER, "last-applied-record-lag-ms", "milliseconds since the time of that record",
        lambda member: member.loader.lag_ms(member.clock.wall_ms())),
    Row(BROKER, "metadata-load-error-count", "errors of loading the metadata",
        lambda member: member.loader.counts.errors,
        kind="counter"),
    Row(LOADER, "CurrentMetadataVersion", "level of metadata.version", lambda member: member.metadata.image.level),
    Row(LOADER, "CurrentControllerId", "node id of the active controller, -1 if unknown",
        lambda member: member.observer.leader_id),
    Row(LOADER, "HandleLoadSnapshotCount", "loaded snapshots of the metadata",
        lambda member: member.loader.counts.snapshots, kind="counter"),
    Row(LOADER, "FinalizedLevel", "finalized level of a feature", _levels, ("feature",)),
    Row(RAFT, "current-leader", "node id of the quorum's leader, -1 if unknown",
        lambda member: member.observer.leader_id),
    Row(RAFT, "current-epoch", "leader epoch of the quorum", lambda member: member.observer.epoch),
    Row(RAFT, "high-watermark", "high watermark of the metadata log, -1 if unknown",
        lambda member: member.observer.high_watermark),
    Row(RAFT, "log-end-offset", "end offset of the metadata log", lambda member: member.log.end_offset),
    Row(RAFT, "log-end-epoch", "leader epoch of its last record", lambda member: member.log.last_epoch),
    Row(OWN, "fenced", "1 while the broker is fenced, 0 otherwise", lambda member: float(member.is_fenced)),
    Row(OWN, "broker-epoch", "epoch of the registration, -1 before it", lambda member: member.broker_epoch),
    Row(OWN, "metadata-lag", "committed records of the metadata that are not in force yet",
        lambda member: member.status.lag),
    Row(OWN, "channel-queue-size", "requests that wait for the active controller", _queues, ("channel",)),
)  # fmt: skip

"""Metrics of a member: its metadata, its registration, and its channels to the active controller.

Source: ``BrokerServerMetrics``, ``MetadataLoaderMetrics``, ``KafkaRaftMetrics``, ``ForwardingManagerMetrics``.
"""

from __future__ import annotations

from collections.abc import Callable

from kbroker._core.metrics.sensor import Sensor
from kbroker.member.forwarding import ForwardingManager
from kbroker.member.member import Member
from kbroker.observe.metric_table import Row, Series

BROKER, RAFT = "broker-metadata-metrics", "raft-metrics"
LOADER, SERVER = "kafka.server:MetadataLoader", "kafka.server:KafkaServer"
FORWARDING, OWN = "ForwardingManager", "kbroker:member"


def _levels(member: Member) -> Series:
    return [((name,), level) for name, level in sorted(member.metadata.image.features.items())]


def _queues(member: Member) -> Series:
    return [((channel.name.rpartition("-")[2],), channel.queue_size) for channel in member.channels]


def _percentile(times: Callable[[ForwardingManager], Sensor], name: str) -> Callable[[Member], float]:
    return lambda member: times(member.forwarding).metrics[name].measure()


ROWS: tuple[Row[Member], ...] = (
    Row(SERVER, "BrokerState",
        "state of the broker: 1 starting, 2 recovery, 3 running, 6 controlled shutdown, 7 shutting down",
        lambda member: member.lifecycle.state),
    Row(BROKER, "last-applied-record-offset", "offset of the last record of the metadata that is in force",
        lambda member: member.metadata.image.offset),
    Row(BROKER, "last-applied-record-timestamp", "time in milliseconds of the last record in force",
        lambda member: member.loader.applied_time_ms),
    Row(BROKER, "last-applied-record-lag-ms", "milliseconds since the time of the last record in force",
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
    Row(RAFT, "log-end-epoch", "leader epoch of the last record of the metadata log",
        lambda member: member.log.last_epoch),
    Row(FORWARDING, "QueueLength", "forwarded requests without a response",
        lambda member: member.forwarding.queue_length),
    *(Row(FORWARDING, f"{name}.{percentile}", f"{text}; {percentile} of the last minute",
          _percentile(times, percentile))
      for name, text, times in (
          ("QueueTimeMs", "milliseconds until a forwarded request was sent to the controller",
           lambda manager: manager.queue_times),
          ("RemoteTimeMs", "milliseconds from the sending of a forwarded request to its response",
           lambda manager: manager.remote_times),
      )
      for percentile in ("p99", "p999")),
    Row(OWN, "fenced", "1 while the broker is fenced, 0 otherwise", lambda member: float(member.is_fenced)),
    Row(OWN, "broker-epoch", "epoch of the registration, -1 before it", lambda member: member.broker_epoch),
    Row(OWN, "metadata-lag", "committed records of the metadata that are not in force yet",
        lambda member: member.lag),
    Row(OWN, "channel-queue-size", "requests that wait for the active controller", _queues, ("channel",)),
)  # fmt: skip

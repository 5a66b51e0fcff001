"""Types of control records: the second number of their keys (KIP-98, KIP-595, KIP-630, KIP-853)."""

from collections.abc import Mapping

ABORT, COMMIT, LEADER_CHANGE, SNAPSHOT_HEADER, SNAPSHOT_FOOTER, KRAFT_VERSION, KRAFT_VOTERS = range(7)

#: Names of the wire tables of the values, except those of transaction markers.
VALUE_TABLES: Mapping[int, str] = {
    LEADER_CHANGE: "LeaderChangeMessage",
    SNAPSHOT_HEADER: "SnapshotHeaderRecord",
    SNAPSHOT_FOOTER: "SnapshotFooterRecord",
    KRAFT_VERSION: "KRaftVersionRecord",
    KRAFT_VOTERS: "VotersRecord",
}

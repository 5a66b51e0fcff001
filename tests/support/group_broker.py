"""Scripted broker with groups of all kinds, for tests of commands."""

from kbroker.protocol import codec
from tests.support.fake_broker import Body, FakeBroker

LIST_OFFSETS, OFFSET_COMMIT, OFFSET_FETCH, FIND_COORDINATOR, DESCRIBE_GROUPS, LIST_GROUPS = 2, 8, 9, 10, 15, 16
CREATE_PARTITIONS, DELETE_GROUPS, DESCRIBE_CONFIGS, INCREMENTAL_ALTER_CONFIGS = 37, 42, 32, 44
CONSUMER_GROUP_HEARTBEAT, CONSUMER_GROUP_DESCRIBE, GROUP_ID_NOT_FOUND, NON_EMPTY_GROUP = 68, 69, 69, 68
SHARE_GROUP_DESCRIBE, DESCRIBE_SHARE_GROUP_OFFSETS, ALTER_SHARE_GROUP_OFFSETS = 77, 90, 91
STREAMS_GROUP_DESCRIBE = 89


class GroupBroker(FakeBroker):
    """Broker with topic `t` of three partitions with offsets 10 to 100; group `g` has committed 50 of partition 0."""

    def __init__(self) -> None:
        super().__init__()
        self.partitions = {"t": 3, "u": 1}
        self.committed = {"g": {("t", 0): 50}}
        self.state = "Empty"
        self.members: list[Body] = []
        self.sharing: dict[str, list[int]] = {}
        self.shared = {("t", 0): 20, ("t", 1): -1}
        self.by_time = {0: 30, 1: 60, 2: -1}
        self.commit_error = 0
        self.handlers |= {
            FIND_COORDINATOR: self.find_coordinator, DESCRIBE_GROUPS: self.describe_groups,
            CONSUMER_GROUP_DESCRIBE: self.describe_newer, SHARE_GROUP_DESCRIBE: self.describe_shared,
            DESCRIBE_SHARE_GROUP_OFFSETS: self.share_offsets, ALTER_SHARE_GROUP_OFFSETS: self.alter_share_offsets,
            STREAMS_GROUP_DESCRIBE: self.describe_streams, LIST_GROUPS: self.list_groups,
            OFFSET_FETCH: self.offset_fetch, OFFSET_COMMIT: self.offset_commit, LIST_OFFSETS: self.list_offsets,
            DELETE_GROUPS: self.delete_groups,
        }  # fmt: skip

    def find_coordinator(self, version: int, body: Body) -> Body:
        row: Body = {"NodeId": 7, "Host": self.address[0], "Port": self.address[1], "ErrorCode": 0}
        return {"Coordinators": [{"Key": key, **row} for key in body["CoordinatorKeys"]]} if version >= 4 else row

    def list_groups(self, version: int, body: Body) -> Body:
        rows = [("g", "classic", self.state), ("other", "classic", "Stable"), ("shared", "share", "Empty")]
        groups = [
            {"GroupId": name, "ProtocolType": "consumer", "GroupState": state, "GroupType": kind}
            for name, kind, state in rows
        ]
        return {"ErrorCode": 0, "Groups": groups}

    def describe_groups(self, version: int, body: Body) -> Body:
        (name,) = body["Groups"]
        if name not in self.committed or name == "app":
            error = GROUP_ID_NOT_FOUND if version >= 6 else 0
            return {"Groups": [{"ErrorCode": error, "GroupId": name, "GroupState": "Dead", "Members": []}]}
        row: Body = {
            "ErrorCode": 0,
            "GroupId": name,
            "GroupState": self.state,
            "ProtocolType": "consumer",
            "ProtocolData": "range" if self.members else "",
            "Members": self.members,
        }
        return {"Groups": [row]}

    def describe_newer(self, version: int, body: Body) -> Body:
        (name,) = body["GroupIds"]
        if name != "newer":
            return {"Groups": [{"ErrorCode": GROUP_ID_NOT_FOUND, "GroupId": name, "Members": []}]}
        assignment = {"TopicPartitions": [{"TopicName": "t", "Partitions": [2]}]}
        target = {"TopicPartitions": [{"TopicName": "t", "Partitions": [0, 1]}]}
        member: Body = {
            "MemberId": "m1",
            "InstanceId": None,
            "ClientId": "c",
            "ClientHost": "/h",
            "Assignment": assignment,
            "MemberEpoch": 4,
            "TargetAssignment": assignment,
        }
        rest: Body = {"MemberId": "m0", "MemberEpoch": 5, "TargetAssignment": target, "MemberType": 0}
        row: Body = {
            "ErrorCode": 0,
            "GroupId": name,
            "GroupState": "Stable",
            "AssignorName": "uniform",
            "GroupEpoch": 6,
            "AssignmentEpoch": 5,
            "Members": [member, {**member, **rest}],
        }
        return {"Groups": [row]}

    def describe_shared(self, version: int, body: Body) -> Body:
        (name,) = body["GroupIds"]
        if name != "shared":
            return {"Groups": [{"ErrorCode": GROUP_ID_NOT_FOUND, "GroupId": name, "Members": []}]}
        members = [
            {"MemberId": member_id, "ClientId": "c", "ClientHost": "/h", "MemberEpoch": 3,
             "Assignment": {"TopicPartitions": [{"TopicName": "t", "Partitions": indexes}]}}
            for member_id, indexes in self.sharing.items()
        ]  # fmt: skip
        row: Body = {
            "ErrorCode": 0, "GroupId": name, "GroupState": "Stable" if self.sharing else "Empty",
            "AssignorName": "simple", "GroupEpoch": 3, "AssignmentEpoch": 3, "Members": members,
        }  # fmt: skip
        return {"Groups": [row]}

    def describe_streams(self, version: int, body: Body) -> Body:
        (name,) = body["GroupIds"]
        if name != "app":
            return {"Groups": [{"ErrorCode": GROUP_ID_NOT_FOUND, "GroupId": name}]}
        part = {"SubtopologyId": "0", "SourceTopics": ["t"], "RepartitionSourceTopics": [{"Name": "u"}]}

        def tasks(active: list[int], standby: list[int]) -> Body:
            rows = [[{"SubtopologyId": "0", "Partitions": some}] if some else [] for some in (active, standby)]
            return {"ActiveTasks": rows[0], "StandbyTasks": rows[1], "WarmupTasks": []}

        member: Body = {"InstanceId": None, "ClientId": "c", "ClientHost": "/h", "IsClassic": False}
        one = {"MemberId": "m1", "MemberEpoch": 4, "ProcessId": "p1", "Assignment": tasks([0, 1], [])}
        two = {"MemberId": "m2", "MemberEpoch": 5, "ProcessId": "p2", "Assignment": tasks([], [0])}
        two["TargetAssignment"], one["TargetAssignment"] = two["Assignment"], tasks([0], [1])
        row: Body = {
            "ErrorCode": 0, "GroupId": name, "GroupState": "Reconciling", "GroupEpoch": 6, "AssignmentEpoch": 5,
            "Topology": {"Epoch": 0, "Subtopologies": [part]}, "Members": [{**member, **two}, {**member, **one}],
        }  # fmt: skip
        return {"Groups": [row]}

    def share_offsets(self, version: int, body: Body) -> Body:
        (group,) = body["Groups"]
        known = self.shared if group["GroupId"] == "shared" else {}
        rows: dict[str, list[Body]] = {}
        for (topic, index), start in known.items():
            lag = -1 if start < 0 else 100 - start - 5
            row = {"PartitionIndex": index, "StartOffset": start, "Lag": lag, "ErrorCode": 0, "ErrorMessage": None}
            rows.setdefault(topic, []).append(row)
        topics = [{"TopicName": topic, "Partitions": some} for topic, some in rows.items()]
        return {"Groups": [{"GroupId": group["GroupId"], "Topics": topics, "ErrorCode": 0, "ErrorMessage": None}]}

    def alter_share_offsets(self, version: int, body: Body) -> Body:
        responses = []
        for topic in body["Topics"]:
            rows = []
            for row in topic["Partitions"]:
                if not self.commit_error:
                    self.shared[topic["TopicName"], row["PartitionIndex"]] = row["StartOffset"]
                rows.append({"PartitionIndex": row["PartitionIndex"], "ErrorCode": self.commit_error})
            responses.append({"TopicName": topic["TopicName"], "Partitions": rows})
        return {"ErrorCode": 0, "ErrorMessage": None, "Responses": responses}

    def offset_fetch(self, version: int, body: Body) -> Body:
        name = body["Groups"][0]["GroupId"] if version >= 8 else body["GroupId"]
        topics = [
            {
                "Name": t,
                "Partitions": [{"PartitionIndex": p, "CommittedOffset": offset, "Metadata": "", "ErrorCode": 0}],
            }
            for (t, p), offset in self.committed.get(name, {}).items()
        ]
        if version >= 8:
            return {"Groups": [{"GroupId": name, "Topics": topics, "ErrorCode": 0}]}
        return {"Topics": topics, "ErrorCode": 0}

    def offset_commit(self, version: int, body: Body) -> Body:
        assert (body["GenerationIdOrMemberEpoch"], body["MemberId"]) == (-1, "")
        topics = []
        for t in body["Topics"]:
            rows = []
            for p in t["Partitions"]:
                rows.append({"PartitionIndex": p["PartitionIndex"], "ErrorCode": self.commit_error})
                place = t["Name"], p["PartitionIndex"]
                if not self.commit_error:
                    self.committed.setdefault(body["GroupId"], {})[place] = p["CommittedOffset"]
            topics.append({"Name": t["Name"], "Partitions": rows})
        return {"Topics": topics}

    def list_offsets(self, version: int, body: Body) -> Body:
        def response(p: Body) -> Body:
            at = {-2: 10, -1: 100}.get(p["Timestamp"], self.by_time.get(p["PartitionIndex"], -1))
            return {"PartitionIndex": p["PartitionIndex"], "Offset": at, "Timestamp": -1, "LeaderEpoch": 0}

        return {
            "Topics": [{"Name": t["Name"], "Partitions": list(map(response, t["Partitions"]))} for t in body["Topics"]]
        }

    def delete_groups(self, version: int, body: Body) -> Body:
        (name,) = body["GroupsNames"]
        error = GROUP_ID_NOT_FOUND if self.committed.pop(name, None) is None else 0
        return {"Results": [{"GroupId": name, "ErrorCode": error}]}


def member(member_id: str, assignment: bytes | None = None, **partitions: list[int]) -> Body:
    body = {"AssignedPartitions": [{"Topic": t, "Partitions": p} for t, p in partitions.items()], "UserData": None}
    data = codec.encode_versioned("ConsumerProtocolAssignment", 1, body) if assignment is None else assignment
    return {
        "MemberId": member_id,
        "GroupInstanceId": None,
        "ClientId": "c",
        "ClientHost": "/127.0.0.1",
        "MemberMetadata": b"",
        "MemberAssignment": data,
    }

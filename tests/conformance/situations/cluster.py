"""Other administrative requests: epochs, log folders, elections, reassignments, ACLs, SCRAM, quorum, features."""

from tests.conformance.bodies import fill
from tests.conformance.codec import Body
from tests.conformance.run import situation
from tests.conformance.talk import Talk


@situation("DescribeCluster", "0-2")
def described(talk: Talk) -> None:
    """Describe the cluster without options and with all options."""
    talk.ask({}, "plain")
    talk.ask({"IncludeClusterAuthorizedOperations": True, "IncludeFencedBrokers": True}, "with operations")


@situation("DescribeCluster", "1-2", over=("0", "2", "3"))
def endpoints(talk: Talk, kind: str) -> None:
    """Request the endpoints of controllers and of unknown types from a broker."""
    talk.ask({"EndpointType": int(kind)})


@situation("OffsetForLeaderEpoch", "2-4")
def ends_of_epochs(talk: Talk) -> None:
    """Request the ends of the present and other epochs, with current epochs, and of unknown partitions and topics."""
    topic = talk.topic()
    fill(talk, topic, batches=3)

    def ask(note: str, epoch: int, *, current: int = -1, name: str = topic.name, partition: int = 0) -> None:
        row = {"Partition": partition, "CurrentLeaderEpoch": current, "LeaderEpoch": epoch}
        talk.ask({"ReplicaId": -1, "Topics": [{"Topic": name, "Partitions": [row]}]}, note)

    for epoch in (0, 1, -1, 99):
        ask(f"epoch {epoch}", epoch)
    for current in (0, 7):
        ask(f"current {current}", 0, current=current)
    ask("unknown partition", 0, partition=4)
    ask("unknown topic", 0, name=talk.name("absent"))
    talk.ask({"ReplicaId": -1, "Topics": [{"Topic": topic.name}]}, "no partitions")
    talk.ask({"ReplicaId": -1, "Topics": []}, "no topics")


@situation("DescribeLogDirs", "1-5")
def log_folders(talk: Talk) -> None:
    """Describe the log folders of a partition, of unknown partitions, of none and of all."""
    topic, absent = talk.topic(), talk.name("absent")
    fill(talk, topic, batches=2)
    talk.ask({"Topics": [{"Topic": topic.name, "Partitions": [0]}]}, "one")
    unknown = [{"Topic": topic.name, "Partitions": [9]}, {"Topic": absent, "Partitions": [0]}]
    talk.ask({"Topics": unknown}, "unknown")
    talk.ask({"Topics": [{"Topic": topic.name}]}, "no partitions")
    talk.ask({"Topics": []}, "none")
    talk.ask({"Topics": None}, "all", only={"Topics": talk.is_own("Name")})


def places(talk: Talk, field: str = "Name") -> list[Body]:
    """Return a partition, an unknown partition and an unknown topic."""
    return [{field: talk.topic().name, "Partitions": [0, 7]}, {field: talk.name("absent"), "Partitions": [0]}]


@situation("AlterReplicaLogDirs", "1-2")
def moved_to_no_folder(talk: Talk) -> None:
    """Move replicas to a folder that the broker does not have."""
    talk.ask({"Dirs": [{"Path": "/no/such/folder", "Topics": places(talk)}]})
    talk.ask({"Dirs": [{"Path": "/no/such/folder", "Topics": [{"Name": talk.topic("second").name}]}]}, "no partitions")
    talk.ask({"Dirs": []}, "no folders")


@situation("ElectLeaders", "0-2", over=("0", "1", "5"))
def elections(talk: Talk, kind: str) -> None:
    """Request preferred, unclean and unknown elections where no leader has to be elected."""
    body = {"ElectionType": int(kind), "TimeoutMs": 5000}
    talk.ask({**body, "TopicPartitions": places(talk, "Topic")})
    talk.ask({**body, "TopicPartitions": [{"Topic": talk.topic("second").name}]}, "no partitions")
    talk.ask({**body, "TopicPartitions": []}, "no topics")


@situation("AlterPartitionReassignments", "0-1")
def reassigned(talk: Talk) -> None:
    """Reassign a partition to its own broker and to unknown ones, cancel, and name an unknown partition."""
    topic, node = talk.topic().name, talk.broker.node_id

    def ask(note: str, replicas: list[int] | None, *, name: str = topic, partition: int = 0) -> None:
        partitions = [{"PartitionIndex": partition, "Replicas": replicas}]
        talk.ask({"TimeoutMs": 5000, "Topics": [{"Name": name, "Partitions": partitions}]}, note)

    rows: dict[str, list[int] | None] = {"in place": [node], "unknown": [99], "none": [], "twice": [node, node]}
    for note, replicas in {**rows, "below zero": [-1], "cancelled": None}.items():
        ask(note, replicas)
    ask("unknown partition", [node], partition=7)
    ask("unknown topic", [node], name=talk.name("absent"))
    talk.ask({"TimeoutMs": 5000, "Topics": [{"Name": topic}]}, "no partitions")
    talk.ask({"TimeoutMs": 5000, "Topics": []}, "no topics")


@situation("ListPartitionReassignments", "0")
def reassignments_listed(talk: Talk) -> None:
    """List the reassignments of a topic, of an unknown topic and of all: there are none."""
    for note, name in (("one", talk.topic().name), ("unknown", talk.name("absent"))):
        talk.ask({"TimeoutMs": 5000, "Topics": [{"Name": name, "PartitionIndexes": [0]}]}, note)
    talk.ask({"TimeoutMs": 5000, "Topics": None}, "all", only={"Topics": talk.is_own("Name")})


# ---- ACLs of a broker without an authorizer

ANY = {"ResourceNameFilter": None, "PrincipalFilter": None, "HostFilter": None}


@situation("DescribeAcls", "1-3")
def acls_described(talk: Talk) -> None:
    """Describe ACLs without an authorizer."""
    talk.ask({"ResourceTypeFilter": 1, "PatternTypeFilter": 1, "Operation": 1, "PermissionType": 1, **ANY})


@situation("CreateAcls", "1-3")
def acls_created(talk: Talk) -> None:
    """Create an ACL without an authorizer."""
    row = {
        "ResourceType": 2,
        "ResourceName": talk.name("t"),
        "ResourcePatternType": 3,
        "Principal": "User:a",
        "Host": "*",
    }
    talk.ask({"Creations": [{**row, "Operation": 3, "PermissionType": 3}]})


@situation("DeleteAcls", "1-3")
def acls_deleted(talk: Talk) -> None:
    """Delete an ACL without an authorizer."""
    row = {"ResourceTypeFilter": 2, "PatternTypeFilter": 3, "Operation": 3, "PermissionType": 3, **ANY}
    talk.ask({"Filters": [{**row, "ResourceNameFilter": talk.name("t")}]})


@situation("AlterUserScramCredentials", "0")
def scram_users(talk: Talk) -> None:
    """Create, describe and delete a SCRAM user, and send invalid credentials."""
    user = talk.name("u")
    good = {"Name": user, "Mechanism": 1, "Iterations": 4096, "Salt": b"salt", "SaltedPassword": bytes(32)}
    gone = {"Deletions": [{"Name": user, "Mechanism": 1}], "Upsertions": []}
    talk.at_end(lambda: talk.quietly("AlterUserScramCredentials", 0, gone))

    def made(note: str, *rows: Body) -> None:
        talk.ask({"Deletions": [], "Upsertions": list(rows)}, note)

    def look(note: str, *names: str) -> None:
        talk.also("DescribeUserScramCredentials", 0, {"Users": [{"Name": name} for name in names]}, note)

    def is_there() -> bool:
        response = talk.quietly("DescribeUserScramCredentials", 0, {"Users": [{"Name": user}]})
        return bool(response["Results"][0]["ErrorCode"] == 0)

    made("made", good)
    talk.until("the user", is_there)
    look("beside an unknown one", user, talk.name("absent"))
    look("twice", user, user)
    bad: dict[str, Body] = {"few": {"Iterations": 4095}, "many": {"Iterations": 16_385}, "mechanism": {"Mechanism": 9}}
    for note, field in {**bad, "no name": {"Name": ""}}.items():
        made(note, {**good, **field})
    made("twice", good, good)
    talk.ask(gone, "deleted")
    talk.until("the end of the user", lambda: not is_there())
    talk.ask(gone, "deleted again")


@situation("DescribeQuorum", "0-2")
def quorum(talk: Talk) -> None:
    """Describe the quorum of the metadata log and of another topic."""
    moves = ("LeaderEpoch", "HighWatermark", "LogEndOffset", "ReplicaDirectoryId", "Nodes")
    for name in ("__cluster_metadata", "other"):
        talk.ask({"Topics": [{"TopicName": name, "Partitions": [{"PartitionIndex": 0}]}]}, name, without=moves)


@situation("UpdateFeatures", "0-2")
def features(talk: Talk) -> None:
    """Update an unknown feature and no feature."""
    updates = [{"Feature": "no.such.feature", "MaxVersionLevel": 1}]
    for note, rows in (("unknown", updates), ("none", [])):
        talk.ask({"timeoutMs": 5000, "FeatureUpdates": rows}, note)

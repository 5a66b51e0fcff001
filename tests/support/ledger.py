"""Ledger of a broker: everything that clients can see of the broker, in a form in which two brokers can be compared.

Requests are encoded by kbroker's codec, so that kbroker and Apache Kafka receive the same requests.
"""

import hashlib
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from kbroker.client.security import ClientSecurity
from kbroker.protocol import codec
from kbroker.protocol.records import iter_records
from tests.support import wire
from tests.support.client import Body, Client
from tests.support.errors import errors_in

Place = tuple[str, int]
Ledger = dict[str, Any]

TOPIC, BROKER, CLIENT_METRICS, GROUP = 2, 4, 16, 32
DYNAMIC_BROKER, DYNAMIC_DEFAULT_BROKER = 2, 3
EARLIEST, LATEST, MAX_TIMESTAMP = -2, -1, -3
INTERNAL = ("__consumer_offsets", "__transaction_state", "__share_group_state")
REPLICAS = ("ReplicaNodes", "IsrNodes", "OfflineReplicas")
THROTTLED = ("leader.replication.throttled.replicas", "follower.replication.throttled.replicas")
#: Features that kbroker stores without serving them.
UNSERVED = ("eligible.leader.replicas.version",)
FETCH_BYTES = 8 << 20
GROUP_ID_NOT_FOUND = 69
ANY = 1  # matches everything in filters of ACLs


class Unready(Exception):
    """The broker does not serve everything yet; the message names the missing part."""


def take_ledger(
    bootstrap: str,
    tokens_of: Mapping[str, str] | None = None,
    sasl_bootstrap: str = "",
    node_id: int = 1,
    limits: Mapping[str, int] | None = None,
) -> Ledger:
    """Return the ledger of a broker once the broker serves everything and leads each partition.

    Args:
        tokens_of: properties of a client that logs in at ``sasl_bootstrap`` to describe the delegation tokens.
        node_id: of the broker.
        limits: highest version of requests by API; None: the broker's highest versions.
    """
    limits = limits_of(bootstrap) if limits is None else limits
    deadline = time.monotonic() + 60
    while True:
        try:
            with Client(bootstrap, "ledger") as client:
                found = _Taker(client, node_id, limits).take()
            if tokens_of is not None:
                found["tokens"] = _tokens(sasl_bootstrap, tokens_of)
            return found
        except Unready as error:
            if time.monotonic() > deadline:
                raise AssertionError(f"not within 60 s: {error}") from None
            time.sleep(0.1)


def limits_of(bootstrap: str) -> dict[str, int]:
    """Return the highest version of each API of a broker."""
    names = {key: codec.api(key).name for key in codec.apis()}
    return {names[key]: high for key, (_, high) in wire.ranges(bootstrap).items() if key in names}


def differences(before: Ledger, after: Ledger) -> list[str]:
    """Return the differences of two ledgers that a client can see; leader epochs may rise."""
    found = list(_differences("", _without_epochs(before), _without_epochs(after)))
    for place, epoch in before["leader epochs"].items():
        if after["leader epochs"].get(place, -1) < epoch:
            found.append(f"leader epoch of {place}: {epoch} fell to {after['leader epochs'].get(place)}")
    for place, ends in before["epoch ends"].items():
        if after["epoch ends"].get(place, [])[: len(ends)] != ends:
            found.append(f"ends of the epochs of {place}: {ends} became {after['epoch ends'].get(place)}")
    return found


def without_places(ledger: Ledger) -> Ledger:
    """Return a ledger without the replicas, leaders and folders of the partitions.

    A reassignment also clears the configs of the replicas that it throttles.
    """
    topics = {
        name: {**topic, "Partitions": [_without(row, "LeaderId", *REPLICAS) for row in topic["Partitions"]]}
        for name, topic in ledger["topics"].items()
    }
    configs = {name: _without(entries, *THROTTLED) for name, entries in ledger["topic configs"].items()}
    return {**_without(ledger, "log dirs"), "topics": topics, "topic configs": configs}


def _without(values: Mapping[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in values.items() if name not in names}


def _without_epochs(ledger: Ledger) -> Ledger:
    return _without(ledger, "leader epochs", "epoch ends")


def _differences(where: str, before: Any, after: Any) -> Iterator[str]:
    if isinstance(before, dict) and isinstance(after, dict):
        for key in [*before, *(key for key in after if key not in before)]:
            yield from _differences(f"{where}/{key}", before.get(key, "absent"), after.get(key, "absent"))
    elif before != after:
        yield f"{where}: {before!r} became {after!r}"


def _tokens(bootstrap: str, properties: Mapping[str, str]) -> list[Body]:
    security = ClientSecurity(properties)
    with security.open_cluster(bootstrap) as cluster:
        response = cluster.connection_to(None).request(41, 3, {"Owners": None})
    _check("DescribeDelegationToken", response)
    return sorted(response["Tokens"], key=lambda token: token["TokenId"])


def _check(api: str, value: Any) -> None:
    """Raise Unready if a response contains an error."""
    for error in errors_in(value):
        raise Unready(f"{api}: {error}"[:500])


class _Taker:
    def __init__(self, client: Client, node_id: int, limits: Mapping[str, int]) -> None:
        self._limits = limits
        self._client = client
        self._node_id = str(node_id)
        self._places: list[Place] = []
        self._topics: list[str] = []  # topics of clients
        self._epochs: dict[Place, int] = {}
        self._configs: dict[str, dict[str, str]] = {}

    def take(self) -> Ledger:
        found: Ledger = {}
        for take in (
            self._metadata, self._features, self._topic_configs, self._other_configs, self._security, self._log_dirs,
            self._groups, self._transactions, self._offsets, self._records,
        ):  # fmt: skip
            found |= take()
        return found

    def _ask(self, api: str, version: int, body: Body) -> Body:
        response = self._client.call(api, min(version, self._limits[api]), body)
        _check(api, response)
        return response

    def _metadata(self) -> Ledger:
        response = self._ask("Metadata", 13, {"Topics": None, "AllowAutoTopicCreation": False})
        topics: Ledger = {}
        epochs: dict[Place, int] = {}
        for topic in sorted(response["Topics"], key=lambda topic: topic["Name"]):
            name = topic["Name"]
            partitions = sorted(topic["Partitions"], key=lambda partition: partition["PartitionIndex"])
            for partition in partitions:
                epochs[name, partition["PartitionIndex"]] = partition.pop("LeaderEpoch")
            topics[name] = {**topic, "Partitions": partitions}
        self._topics = [name for name in topics if name not in INTERNAL]
        self._epochs = epochs
        self._places = [place for place in epochs if place[0] in self._topics]
        return {"cluster": response["ClusterId"], "topics": topics, "leader epochs": epochs, "elr": self._elr(topics)}

    def _elr(self, topics: Mapping[str, Body]) -> Ledger:
        found: Ledger = {}
        cursor = None
        while True:
            asked = [{"Name": name} for name in topics]
            body = {"Topics": asked, "ResponsePartitionLimit": 2000, "Cursor": cursor}
            response = self._ask("DescribeTopicPartitions", 0, body)
            for topic in response["Topics"]:
                for row in topic["Partitions"]:
                    ready = (row["EligibleLeaderReplicas"] or [], row["LastKnownElr"] or [])
                    found[f"{topic['Name']}-{row['PartitionIndex']}"] = ready
            cursor = response["NextCursor"]
            if cursor is None:
                return found

    def _features(self) -> Ledger:
        response = self._ask("ApiVersions", 4, {"ClientSoftwareName": "ledger", "ClientSoftwareVersion": "1"})
        rows = response["FinalizedFeatures"]
        return {"features": {row["Name"]: row["MaxVersionLevel"] for row in rows if row["Name"] not in UNSERVED}}

    def _describe_configs(self, kind: int, names: Sequence[str]) -> dict[str, dict[str, Body]]:
        asked = [{"ResourceType": kind, "ResourceName": name, "ConfigurationKeys": None} for name in names]
        response = self._ask("DescribeConfigs", 4, {"Resources": asked, "IncludeSynonyms": True})
        return {row["ResourceName"]: {one["Name"]: one for one in row["Configs"]} for row in response["Results"]}

    def _topic_configs(self) -> Ledger:
        described = self._describe_configs(TOPIC, self._topics)
        self._configs = {
            topic: {name: entry["Value"] for name, entry in configs.items()} for topic, configs in described.items()
        }
        return {"topic configs": described}

    def _other_configs(self) -> Ledger:
        found: Ledger = {}
        kinds = {"ResourceTypes": [CLIENT_METRICS, GROUP]} if self._limits["ListConfigResources"] > 0 else {}
        listed = self._ask("ListConfigResources", 1, kinds)["ConfigResources"]
        found["config resources"] = sorted((row["ResourceType"], row["ResourceName"]) for row in listed)
        for kind, name in found["config resources"]:
            found[f"configs of {kind} {name}"] = self._describe_configs(kind, [name])[name]
        for subject, name in (("all brokers", ""), ("the broker", self._node_id)):
            entries = self._describe_configs(BROKER, [name])[name].values()
            found[f"dynamic configs of {subject}"] = {
                entry["Name"]: {key: entry[key] for key in ("Value", "ConfigSource", "IsSensitive", "ConfigType")}
                for entry in entries
                if entry["ConfigSource"] in (DYNAMIC_BROKER, DYNAMIC_DEFAULT_BROKER)
            }
        return found

    def _security(self) -> Ledger:
        quotas = self._ask("DescribeClientQuotas", 1, {"Components": [], "Strict": False})["Entries"]
        users = self._ask("DescribeUserScramCredentials", 0, {"Users": None})["Results"]
        anything: Body = {"ResourceTypeFilter": ANY, "PatternTypeFilter": ANY, "Operation": ANY, "PermissionType": ANY}
        anyone = dict.fromkeys(("ResourceNameFilter", "PrincipalFilter", "HostFilter"))
        acls = self._ask("DescribeAcls", 3, {**anything, **anyone})["Resources"]
        return {
            "quotas": {
                str(sorted((part["EntityType"], part["EntityName"] or "") for part in one["Entity"])): {
                    value["Key"]: value["Value"] for value in one["Values"]
                }
                for one in quotas
            },
            "users": {one["User"]: sorted(one["CredentialInfos"], key=lambda info: info["Mechanism"]) for one in users},
            "acls": {
                f"{one['ResourceType']} {one['PatternType']} {one['ResourceName']}": sorted(map(str, one["Acls"]))
                for one in acls
            },
        }

    def _log_dirs(self) -> Ledger:
        response = self._ask("DescribeLogDirs", 4, {"Topics": None})
        found: Ledger = {}
        for one in response["Results"]:
            found[one["LogDir"]] = {
                f"{topic['Name']}-{row['PartitionIndex']}": row if self._has_fixed_size(topic["Name"]) else "is there"
                for topic in one["Topics"]
                for row in topic["Partitions"]
            }
        return {"log dirs": found}

    def _has_fixed_size(self, topic: str) -> bool:
        return topic in self._topics and not self._is_compacted(topic)

    def _is_compacted(self, topic: str) -> bool:
        return "compact" in self._configs[topic]["cleanup.policy"]

    def _groups(self) -> Ledger:
        listed = self._ask("ListGroups", 5, {"StatesFilter": [], "TypesFilter": []})["Groups"]
        groups = {group["GroupId"]: group for group in listed}
        found: Ledger = {"groups": groups}
        for kind, api, version, asked in (
            ("Classic", "DescribeGroups", 6, "Groups"),
            ("Consumer", "ConsumerGroupDescribe", 1, "GroupIds"),
        ):
            names = [name for name, group in groups.items() if group["GroupType"].lower() == kind.lower()]
            rows = self._client.call(api, min(version, self._limits[api]), {asked: names})["Groups"] if names else []
            rows = [row for row in rows if row["ErrorCode"] != GROUP_ID_NOT_FOUND]  # Kafka 4.0 lists deleted groups
            _check(api, rows)
            found[f"{kind} groups"] = {row["GroupId"]: row for row in rows}
        asked_groups = [{"GroupId": name, "Topics": None} for name in groups]
        rows = self._ask("OffsetFetch", 9, {"Groups": asked_groups, "RequireStable": False})["Groups"]
        found["group offsets"] = {
            row["GroupId"]: {
                f"{topic['Name']}-{one['PartitionIndex']}": one
                for topic in row["Topics"]
                for one in topic["Partitions"]
            }
            for row in rows
        }
        return found

    def _transactions(self) -> Ledger:
        body = {"StateFilters": [], "ProducerIdFilters": [], "DurationFilter": -1, "TransactionalIdPattern": None}
        listed = self._ask("ListTransactions", 2, body)["TransactionStates"]
        names = sorted(one["TransactionalId"] for one in listed)
        states = self._ask("DescribeTransactions", 0, {"TransactionalIds": names})["TransactionStates"]
        producers = self._ask("DescribeProducers", 0, {"Topics": self._by_topic("PartitionIndexes")})["Topics"]
        return {
            "transactions": {
                one["TransactionalId"]: {
                    **one,
                    "Topics": sorted((row["Topic"], sorted(row["Partitions"])) for row in one["Topics"]),
                }
                for one in states
            },
            "producers": {
                f"{topic['Name']}-{row['PartitionIndex']}": {one["ProducerId"]: one for one in row["ActiveProducers"]}
                for topic in producers
                for row in topic["Partitions"]
            },
        }

    def _by_topic(self, key: str, row: Any = None) -> list[Body]:
        """Return the clients' partitions in the form of requests; ``row``: makes a struct of a partition's number."""
        return [
            {
                "Name": name,
                key: [index if row is None else row(index) for topic, index in self._places if topic == name],
            }
            for name in self._topics
        ]

    def _list_offsets(self, timestamp: int, isolation: int = 0) -> dict[Place, tuple[int, int]]:
        rows = self._by_topic(
            "Partitions", lambda index: {"PartitionIndex": index, "CurrentLeaderEpoch": -1, "Timestamp": timestamp}
        )
        response = self._ask("ListOffsets", 7, {"ReplicaId": -1, "IsolationLevel": isolation, "Topics": rows})
        return {
            (topic["Name"], row["PartitionIndex"]): (row["Offset"], row["Timestamp"])
            for topic in response["Topics"]
            for row in topic["Partitions"]
        }

    def _offsets(self) -> Ledger:
        self._starts = self._list_offsets(EARLIEST)
        self._ends = self._list_offsets(LATEST)
        self._stable = self._list_offsets(LATEST, 1)
        return {
            "starts": self._starts,
            "ends": self._ends,
            "stable ends": self._stable,
            # Kafka finds records below the log start offset too
            "newest": {p: at for p, at in self._list_offsets(MAX_TIMESTAMP).items() if self._starts[p][0] == 0},
            "epoch ends": self._epoch_ends(),
        }

    def _epoch_ends(self) -> dict[Place, list[int]]:
        """Return for each partition the end offsets of the epochs up to the leader's epoch."""
        found: dict[Place, list[int]] = {place: [] for place in self._places}
        for epoch in range(max(self._epochs.values(), default=-1) + 1):
            topics: dict[str, list[Body]] = {}
            for name, index in self._places:
                if epoch <= self._epochs[name, index]:
                    row = {"Partition": index, "CurrentLeaderEpoch": -1, "LeaderEpoch": epoch}
                    topics.setdefault(name, []).append(row)
            rows = [{"Topic": name, "Partitions": partitions} for name, partitions in topics.items()]
            for topic in self._ask("OffsetForLeaderEpoch", 4, {"ReplicaId": -1, "Topics": rows})["Topics"]:
                for row in topic["Partitions"]:
                    found[topic["Topic"], row["Partition"]].append(row["EndOffset"])
        return found

    def _records(self) -> Ledger:
        found: Ledger = {"records": {}, "committed": {}}
        for place in self._places:
            name = f"{place[0]}-{place[1]}"
            if self._is_compacted(place[0]):
                found["records"][name] = self._newest_values(place)
                continue
            found["records"][name] = self._digest(place, 0)
            found["committed"][name] = self._digest(place, 1)
        return found

    def _fetched(self, place: Place, isolation: int) -> Iterator[Body]:
        offset, end = self._starts[place][0], (self._stable if isolation else self._ends)[place][0]
        while offset < end:
            row = {"Partition": place[1], "FetchOffset": offset, "PartitionMaxBytes": FETCH_BYTES}
            body = {
                "ReplicaId": -1, "MaxWaitMs": 0, "MinBytes": 1, "MaxBytes": FETCH_BYTES, "IsolationLevel": isolation,
                "Topics": [{"Topic": place[0], "Partitions": [row]}],
            }  # fmt: skip
            response = self._ask("Fetch", 12, body)
            (found,) = response["Responses"][0]["Partitions"]
            batches = wire.split(bytes(found["Records"] or b""))
            found["Records"] = b"".join(batches)
            after = wire.offset_after(batches[-1]) if batches else -1
            if after <= offset:
                raise Unready(f"Fetch of {place} at {offset}, end {end}: {response}"[:500])
            yield found
            offset = after

    def _digest(self, place: Place, isolation: int) -> str:
        """Return a digest of all batches as received, and the aborted transactions among them."""
        digest, aborted = hashlib.sha256(), set()
        for part in self._fetched(place, isolation):
            digest.update(part["Records"])
            aborted |= {(one["ProducerId"], one["FirstOffset"]) for one in part["AbortedTransactions"] or ()}
        return f"{digest.hexdigest()[:24]} {sorted(aborted)}"

    def _newest_values(self, place: Place) -> dict[bytes | None, tuple[int, bytes | None]]:
        """Return the newest record of each key, which compaction by either broker keeps."""
        newest: dict[bytes | None, tuple[int, bytes | None]] = {}
        for part in self._fetched(place, 0):
            for record in iter_records(part["Records"]):
                newest[record.key] = (record.offset, record.value)
        return newest

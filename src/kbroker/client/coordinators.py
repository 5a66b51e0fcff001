"""Look-up of the coordinators of groups and transactional ids."""

from collections.abc import Iterable
from contextlib import suppress

from kbroker.client.cluster import Cluster, check, shared_version, to_error
from kbroker.client.connection import Body
from kbroker.common.errors import Errors, KafkaError

FIND_COORDINATOR = 10
FIRST_WITH_KEYS = 4
GROUP, TRANSACTION = 0, 1
KINDS = {GROUP: "group", TRANSACTION: "transactional id"}


def find_coordinator(cluster: Cluster, kind: int, key: str) -> int:
    """Return the node id of the coordinator of ``key``, without retries.

    Args: ``kind``: GROUP or TRANSACTION.
    Raises: KafkaError, such as COORDINATOR_NOT_AVAILABLE, INVALID_GROUP_ID, UNSUPPORTED_VERSION for a transactional id
        on a broker before Kafka 0.11; BrokerConnectionError.
    """
    what = f"{KINDS[kind]} {key!r}"

    def body(version: int) -> Body:
        if version >= FIRST_WITH_KEYS:
            return {"KeyType": kind, "CoordinatorKeys": [key]}
        if version:
            return {"Key": key, "KeyType": kind}
        if kind != GROUP:
            raise KafkaError(Errors.UNSUPPORTED_VERSION, f"{what}: this broker does not support transactions")
        return {"Key": key}

    response = cluster.request(FIND_COORDINATOR, body, timeout_s=cluster.coordinator_timeout_s)
    rows = response.get("Coordinators")
    row = rows[0] if rows else response
    check(row["ErrorCode"], what, row.get("ErrorMessage"))
    node_id: int = row["NodeId"]
    return node_id


def find_group_coordinators(cluster: Cluster, group_ids: Iterable[str]) -> dict[int, list[str]]:
    """Return groups by the node id of their coordinator, with one request where brokers support it (Kafka 3.0).

    Groups without an available coordinator, and those that the user may not describe, are left out.
    """
    wanted, found = list(group_ids), dict[int, list[str]]()
    if not wanted:
        return found
    if shared_version(cluster.connection_to(None), FIND_COORDINATOR) < FIRST_WITH_KEYS:
        for group_id in wanted:
            with suppress(KafkaError):
                found.setdefault(find_coordinator(cluster, GROUP, group_id), []).append(group_id)
        return found
    for row in cluster.request(FIND_COORDINATOR, {"KeyType": GROUP, "CoordinatorKeys": wanted})["Coordinators"]:
        if to_error(row["ErrorCode"]) is Errors.NONE:
            found.setdefault(row["NodeId"], []).append(row["Key"])
    return found

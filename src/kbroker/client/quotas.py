"""Client quotas of any Kafka cluster, as a library: describe, alter, resolve, compare and apply them (KIP-546).

from kbroker.client.quotas import QuotaClient, QuotaEntity

with QuotaClient("kafka:9092") as quotas:
    quotas.apply({QuotaEntity.of({"user": "alice"}): {"producer_byte_rate": 1_048_576}})
"""

import functools
from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping, Sequence
from typing import Any, Concatenate, NamedTuple, ParamSpec, SupportsFloat, TypeVar

from kbroker.client.cluster import Closing, Cluster, to_error
from kbroker.client.connection import Body, BrokerConnectionError
from kbroker.client.quota_file import QuotaFileError, read_quota_file
from kbroker.client.quota_resolution import ResolvedQuota, Values, resolve_quotas
from kbroker.client.security import ClientSecurity
from kbroker.common.errors import Errors, KafkaError
from kbroker.common.quota_levels import LevelOutcome
from kbroker.common.quotas import CLIENT_KEYS, IP, IP_KEYS, QuotaEntity, check_name, enforced_key, is_shadow_key

__all__ = [
    "Applied",
    "AsyncQuotaClient",
    "BrokerConnectionError",
    "Difference",
    "Errors",
    "KafkaError",
    "LevelOutcome",
    "QuotaClient",
    "QuotaEntity",
    "QuotaFileError",
    "ResolvedQuota",
    "read_quota_file",
]

DESCRIBE_CLIENT_QUOTAS, ALTER_CLIENT_QUOTAS = 48, 49
EXACT, DEFAULT, ANY = 0, 1, 2

#: First version of Kafka with a key; the other keys are as old as the API.
KNOWN_SINCE = {"controller_mutation_rate": "2.7", "connection_creation_rate": "2.8"}

#: The user of a client that does not log in.
ANONYMOUS = "ANONYMOUS"
CLIENT_ID = "kbroker-quotas"

P = ParamSpec("P")
T = TypeVar("T")
Changes = Mapping[str, float | None]


class Difference(NamedTuple):
    """One quota that differs; ``before`` is None if it is added, ``after`` if it is removed."""

    entity: QuotaEntity
    key: str
    before: float | None
    after: float | None


def differences(
    current: Mapping[QuotaEntity, Values], wanted: Mapping[QuotaEntity, Values], prune: bool = False
) -> list[Difference]:
    """Return the changes that give each wanted entity exactly these quotas; with ``prune``, no other entity has any."""
    found = []
    for entity in [*wanted, *(other for other in current if prune and other not in wanted)]:
        before, after = current.get(entity, {}), wanted.get(entity, {})
        for key in sorted({*before, *after}):
            if before.get(key) != after.get(key):
                found.append(Difference(entity, key, before.get(key), after.get(key)))
    return found


def shadow_differences(
    current: Mapping[QuotaEntity, Values], keys: Collection[str], *, promote: bool
) -> list[Difference]:
    """Return the changes that make shadow quotas the enforced ones (``promote``), or only remove them.

    Args: ``keys``: the quotas, with or without "shadow."; all shadows if empty.
    """
    wanted = {enforced_key(key) for key in keys}
    found = []
    for entity, values in current.items():
        for key, value in values.items():
            of = enforced_key(key)
            if not is_shadow_key(key) or (wanted and of not in wanted):
                continue
            if promote and values.get(of) != value:
                found.append(Difference(entity, of, values.get(of), value))
            found.append(Difference(entity, key, value, None))
    return found


def changes_for(found: Sequence[Difference]) -> dict[QuotaEntity, dict[str, float | None]]:
    """Return the differences as the changes of one request."""
    ops: dict[QuotaEntity, dict[str, float | None]] = {}
    for entity, key, _, after in found:
        ops.setdefault(entity, {})[key] = after
    return ops


class Applied(NamedTuple):
    """The result of `QuotaClient.apply`.

    ``differences``: everything that differed. ``refusals``: errors of the broker by entity; such an entity was not
    changed at all, every other one was.
    """

    differences: list[Difference]
    refusals: dict[QuotaEntity, KafkaError]

    @property
    def made(self) -> list[Difference]:
        """The differences that were resolved."""
        return [one for one in self.differences if one.entity not in self.refusals]

    def check(self) -> None:
        """Raise the first refusal, if there is one."""
        for refusal in self.refusals.values():
            raise refusal


class QuotaClient(Closing):
    """The client quotas of one cluster.

    Args:
        cluster: `host:port[,host:port...]`; or a `Cluster`, which the caller owns.
        properties: how to reach a secured cluster, by Kafka's names: ``security.protocol``, ``sasl.*``, ``ssl.*``.
        client_id: sent with every request; the broker's quotas, logs and metrics show it.
        connect_timeout_s, request_timeout_s, retry_timeout_s: seconds for a connection, for one request and its
            response, and for further attempts. With a `Cluster`, its settings apply.

    Every method raises BrokerConnectionError if the cluster cannot be reached, and KafkaError with the broker's code
    and message: UNSUPPORTED_VERSION for a broker before Kafka 2.6, CLUSTER_AUTHORIZATION_FAILED without the right to
    describe, or to alter, the configs of the cluster. Retriable failures are retried for retry_timeout_s, since
    setting a quota is idempotent. ValueError for a name that is not valid UTF-8 or exceeds 32,767 bytes.
    Raises: BrokerConnectionError; ValueError for a malformed address or an invalid property.
    Threads: one at a time.
    """

    def __init__(
        self,
        cluster: str | Cluster,
        properties: Mapping[str, str] | None = None,
        *,
        client_id: str = CLIENT_ID,
        connect_timeout_s: float = 10.0,
        request_timeout_s: float = 30.0,
        retry_timeout_s: float = 30.0,
    ) -> None:
        self._owns_cluster = isinstance(cluster, str)
        if isinstance(cluster, str):
            cluster = ClientSecurity(properties or {}).open_cluster(
                cluster,
                client_id=client_id,
                connect_timeout_s=connect_timeout_s,
                request_timeout_s=request_timeout_s,
                retry_timeout_s=retry_timeout_s,
            )
        elif not isinstance(cluster, Cluster):
            raise TypeError(f"expected a text host:port[,host:port...] or a Cluster, got {type(cluster).__name__}")
        elif properties is not None:
            raise ValueError("expected properties with host:port, got them with a Cluster, which has its own")
        self.cluster = cluster

    def close(self) -> None:
        """Close the connections, except those of a `Cluster` that the caller passed. Idempotent."""
        if self._owns_cluster:
            self.cluster.close()

    def describe(
        self, exact: Mapping[str, str | None] | None = None, present: Iterable[str] = (), *, strict: bool = False
    ) -> dict[QuotaEntity, dict[str, float]]:
        """Return the entities that match, with their quotas; all entities without a condition.

        Args:
            exact: names by entity type, None for the default of the type.
            present: types that an entity must have, with any name.
            strict: an entity must have no other types.
        """
        _check_names(exact or {})
        components: list[Body] = [
            {"EntityType": kind, "MatchType": DEFAULT if name is None else EXACT, "Match": name}
            for kind, name in (exact or {}).items()
        ]
        components += [{"EntityType": kind, "MatchType": ANY, "Match": None} for kind in present]
        response = self._ask(DESCRIBE_CLIENT_QUOTAS, {"Components": components, "Strict": strict})
        found = {
            _entity(row): {value["Key"]: value["Value"] for value in sorted(row["Values"], key=lambda v: str(v["Key"]))}
            for row in response["Entries"] or ()
        }
        return dict(sorted(found.items(), key=lambda one: _order(one[0])))

    def of(self, entity: QuotaEntity) -> dict[str, float]:
        """Return the quotas of exactly this entity."""
        return self.describe(entity.names, strict=True).get(entity, {})

    def alter(
        self, changes: Mapping[QuotaEntity, Changes], *, validate_only: bool = False
    ) -> dict[QuotaEntity, KafkaError | None]:
        """Set quotas, or remove those whose value is None, in one request; ``validate_only``: change nothing.

        Returns: the broker's error by entity, None if all of its changes were made. Entities are independent.
        """
        for entity, ops in changes.items():
            _check_types(entity, ops)
            _check_names(entity.names)
        entries = [
            {
                "Entity": [{"EntityType": kind, "EntityName": name} for kind, name in entity.parts],
                "Ops": [
                    {"Key": key, "Value": 0.0 if value is None else value, "Remove": value is None}
                    for key, value in ops.items()
                ],
            }
            for entity, ops in changes.items()
        ]
        response = self._ask(ALTER_CLIENT_QUOTAS, {"Entries": entries, "ValidateOnly": validate_only})
        answered = {_entity(row): row for row in response["Entries"]}
        results: dict[QuotaEntity, KafkaError | None] = {}
        for entity, ops in changes.items():
            row = answered.get(entity)
            if row is None:
                results[entity] = KafkaError(
                    Errors.UNKNOWN_SERVER_ERROR, f"{entity}: the broker's response does not have it"
                )
            elif row["ErrorCode"]:
                error = to_error(row["ErrorCode"])
                text = f"{entity}: {row['ErrorMessage'] or error.message}{_too_old(entity, ops, error, row)}"
                results[entity] = KafkaError(error, text)
            else:
                results[entity] = None
        return results

    def resolve(self, user: str = ANONYMOUS, client_id: str = "", address: str | None = None) -> list[ResolvedQuota]:
        """Return the quotas that apply to one client, their levels (of eight), and why the others do not apply.

        Args:
            user: the name of its principal, without "User:".
            client_id: empty for a client that sends none; quotas of client ids do not apply to it.
            address: the IP address of the client; without one, connection_creation_rate is left out.
        """
        return resolve_quotas(self.describe(), user, client_id, address)

    def diff(self, wanted: Mapping[QuotaEntity, Values], *, prune: bool = False) -> list[Difference]:
        """Return the changes that `apply` would make.

        Args:
            wanted: all quotas of each entity; an empty mapping removes them.
            prune: remove the quotas of all other entities.
        """
        return differences(self.describe(), wanted, prune)

    def apply(
        self, wanted: Mapping[QuotaEntity, Values], *, prune: bool = False, validate_only: bool = False
    ) -> Applied:
        """Set the quotas as wanted, with one request for all differences, or none; return the differences and refusals.

        Args: as `diff`; ``validate_only``: change nothing.
        """
        return self._apply(self.diff(wanted, prune=prune), validate_only)

    def promote_shadows(
        self, entity: QuotaEntity | None = None, keys: Collection[str] = (), *, validate_only: bool = False
    ) -> Applied:
        """Set enforced quotas to the limits of their shadows, and remove the shadows, in one request.

        Only kbroker has shadow quotas.

        Args:
            entity: the entity; None for all entities.
            keys: the quotas, with or without "shadow."; all if empty.
            validate_only: change nothing.
        """
        return self._apply(shadow_differences(self._shadows_of(entity), keys, promote=True), validate_only)

    def drop_shadows(
        self, entity: QuotaEntity | None = None, keys: Collection[str] = (), *, validate_only: bool = False
    ) -> Applied:
        """Remove shadow quotas in one request; enforced quotas stay. Args: as `promote_shadows`."""
        return self._apply(shadow_differences(self._shadows_of(entity), keys, promote=False), validate_only)

    def _shadows_of(self, entity: QuotaEntity | None) -> Mapping[QuotaEntity, Values]:
        return self.describe() if entity is None else {entity: self.of(entity)}

    def _apply(self, found: list[Difference], validate_only: bool) -> Applied:
        results = self.alter(changes_for(found), validate_only=validate_only) if found else {}
        return Applied(found, {entity: refusal for entity, refusal in results.items() if refusal is not None})

    def broker_count(self) -> int:
        """Return the number of brokers in the cluster.

        Each broker enforces quotas separately, so a client may get the limit of each. Only controller_mutation_rate
        holds for the cluster as a whole.
        """
        self.cluster.retry(lambda: self.cluster.fetch_metadata([]))
        return len(self.cluster.nodes)

    def _ask(self, api_key: int, body: Body) -> Body:
        try:
            return self.cluster.retry(lambda: self.cluster.ask(api_key, body, "quotas"))
        except KafkaError as failure:
            if failure.error is not Errors.UNSUPPORTED_VERSION:
                raise
            text = f"{failure.message}: brokers have quota requests from Kafka 2.6 on"
            raise KafkaError(failure.error, text) from None


def alter_all(client: QuotaClient, changes: Mapping[QuotaEntity, Changes], *, validate_only: bool = False) -> None:
    """Alter quotas in one request. Raises: KafkaError of the first entity that was refused; the others were changed."""
    for refusal in client.alter(changes, validate_only=validate_only).values():
        if refusal is not None:
            raise refusal


def _check_types(entity: object, ops: object) -> None:
    """Raise TypeError unless these are an entity and numbers by key."""
    if not isinstance(entity, QuotaEntity):
        raise TypeError(f"expected a QuotaEntity such as QuotaEntity.of({{'user': 'alice'}}), got {entity!r}")
    if not isinstance(ops, Mapping):
        raise TypeError(f"{entity}: expected a number for each key, got {ops!r}")
    for key, value in ops.items():
        if value is not None and not isinstance(value, SupportsFloat):
            raise TypeError(f"{entity}: {key}: expected a number or None, got {value!r}")


def _check_names(names: Mapping[str, str | None]) -> None:
    for kind, name in names.items():
        check_name(kind, name)


def _too_old(entity: QuotaEntity, ops: Changes, error: Errors, row: Body) -> str:
    """Return an explanation of INVALID_REQUEST from a broker that is too old for a key or entity type; else ""."""
    message = row["ErrorMessage"] or ""
    known = IP_KEYS if IP in entity.names else CLIENT_KEYS
    for key, version in KNOWN_SINCE.items():
        is_meant = not message or f"key {key}" in message or "entity type" in message
        if error is Errors.INVALID_REQUEST and is_meant and key in ops and key in known:
            return f" (this broker is too old for it: {key} came with Kafka {version}; leave it out or upgrade)"
    for key in ops:
        is_unknown = error is Errors.INVALID_REQUEST and f"key {key}" in message
        if is_unknown and is_shadow_key(key) and enforced_key(key) in known:
            return f" (this cluster keeps its quotas in Apache Kafka, which refuses shadow quotas: leave {key} out)"
    return ""


def _entity(row: Body) -> QuotaEntity:
    return QuotaEntity.of({part["EntityType"]: part["EntityName"] for part in row["Entity"]})


def _order(entity: QuotaEntity) -> tuple[tuple[str, bool, str], ...]:
    """Return a sort key: by type, the default before names."""
    return tuple((kind, name is not None, name or "") for kind, name in entity.parts)


def _asynchronous(
    method: Callable[Concatenate[QuotaClient, P], T],
) -> "Callable[Concatenate[AsyncQuotaClient, P], Coroutine[Any, Any, T]]":
    """Return a method of `AsyncQuotaClient` that calls this one in its thread."""

    @functools.wraps(method)
    async def call(client: "AsyncQuotaClient", /, *args: P.args, **settings: P.kwargs) -> T:
        return await client._thread.run(lambda cluster: method(QuotaClient(cluster), *args, **settings))

    return call


class AsyncQuotaClient:
    """`QuotaClient` for asyncio: each method is a coroutine.

    Requests are sent one after the other, by one thread over its own connection. A call that is cancelled ends at once;
    an `alter` or `apply` that was cancelled may have changed something: describe the quotas, or repeat the call.

    Args: as `QuotaClient`, without a Cluster; the first call, or ``async with``, connects.
    Raises: ValueError for a malformed address or an invalid property.
    Threads: that of one event loop.
    """

    def __init__(
        self,
        bootstrap: str,
        properties: Mapping[str, str] | None = None,
        *,
        client_id: str = CLIENT_ID,
        connect_timeout_s: float = 10.0,
        request_timeout_s: float = 30.0,
        retry_timeout_s: float = 30.0,
    ) -> None:
        from kbroker.client.client_thread import ClientThread  # loads asyncio, which `QuotaClient` does not need

        self._thread = ClientThread(
            bootstrap,
            properties,
            client_id=client_id,
            connect_timeout_s=connect_timeout_s,
            request_timeout_s=request_timeout_s,
            retry_timeout_s=retry_timeout_s,
        )

    async def __aenter__(self) -> "AsyncQuotaClient":
        try:
            await self._thread.run(lambda cluster: None)
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(self, *failure: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connection and end the thread. Idempotent."""
        await self._thread.close()

    describe = _asynchronous(QuotaClient.describe)
    of = _asynchronous(QuotaClient.of)
    alter = _asynchronous(QuotaClient.alter)
    resolve = _asynchronous(QuotaClient.resolve)
    diff = _asynchronous(QuotaClient.diff)
    apply = _asynchronous(QuotaClient.apply)
    promote_shadows = _asynchronous(QuotaClient.promote_shadows)
    drop_shadows = _asynchronous(QuotaClient.drop_shadows)
    broker_count = _asynchronous(QuotaClient.broker_count)

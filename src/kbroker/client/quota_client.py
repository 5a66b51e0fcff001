"""Client quotas of any Kafka cluster: described, resolved, compared, and altered many at a time.

KIP-546; brokers from Kafka 2.6 on.
"""

from collections.abc import Collection, Iterable, Mapping
from types import TracebackType
from typing import NamedTuple

from kbroker.client.cluster import Cluster, check, to_error
from kbroker.client.connection import Body
from kbroker.client.quota_changes import Changes, Difference, Values, changes_for, differences, shadow_differences
from kbroker.client.quota_resolution import ResolvedQuota, resolve_quotas
from kbroker.client.security import ClientSecurity
from kbroker.common.errors import Errors, KafkaError
from kbroker.common.quotas import CLIENT_KEYS, IP, IP_KEYS, QuotaEntity, check_name, enforced_key, is_shadow_key

DESCRIBE_CLIENT_QUOTAS, ALTER_CLIENT_QUOTAS = 48, 49
EXACT, DEFAULT, ANY = 0, 1, 2

#: What a broker must be at least to know a key; brokers that have the API know the other keys.
KNOWN_SINCE = {"controller_mutation_rate": "2.7", "connection_creation_rate": "2.8"}

#: The user of a client that does not log in.
ANONYMOUS = "ANONYMOUS"
CLIENT_ID = "kbroker-quotas"


class Applied(NamedTuple):
    """What `QuotaClient.apply` has done.

    ``differences``: all that differed. ``refusals``: by entity why the broker refused; such an entity was not changed
    at all, every other one was.
    """

    differences: list[Difference]
    refusals: dict[QuotaEntity, KafkaError]

    @property
    def made(self) -> list[Difference]:
        """The differences that are no more."""
        return [one for one in self.differences if one.entity not in self.refusals]

    def check(self) -> None:
        """Raise the first refusal, if there is one."""
        for refusal in self.refusals.values():
            raise refusal


class QuotaClient:
    """The client quotas of one cluster.

    Args:
        cluster: `host:port[,host:port...]`; or a `Cluster`, which stays the caller's.
        properties: how to reach a secured cluster, by Kafka's names: ``security.protocol``, ``sasl.*``, ``ssl.*``.
        client_id: what the broker's own quotas, logs and metrics know us by.
        connect_timeout_s, request_timeout_s, retry_timeout_s: seconds for a connection, for one request and its
            response, and for further attempts. With a `Cluster`, that one's hold.

    Every method raises BrokerConnectionError when the cluster cannot be reached, and KafkaError with the broker's code
    and text: UNSUPPORTED_VERSION for a broker before Kafka 2.6, CLUSTER_AUTHORIZATION_FAILED without the right (to
    describe, to alter the configs of the cluster). What may go well a moment later is tried again for
    retry_timeout_s: to set a quota twice does no harm. ValueError for a name that no request can carry: one that is
    not UTF-8, or has more than 32,767 bytes.
    Raises: BrokerConnectionError; ValueError for an address or a property that is wrong.
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
            security = ClientSecurity(properties or {})
            cluster = Cluster(
                cluster,
                client_id=client_id,
                connect_timeout_s=connect_timeout_s,
                request_timeout_s=request_timeout_s,
                retry_timeout_s=retry_timeout_s,
                open_stream=security.open_stream,
                authenticate=security.authenticate,
            )
        elif properties is not None:
            raise ValueError("expected properties with host:port, got them with a Cluster, which has its own")
        self.cluster = cluster

    def __enter__(self) -> "QuotaClient":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections, unless they are those of a `Cluster` that was given. Repeated, it does nothing."""
        if self._owns_cluster:
            self.cluster.close()

    def describe(
        self, exact: Mapping[str, str | None] | None = None, present: Iterable[str] = (), *, strict: bool = False
    ) -> dict[QuotaEntity, dict[str, float]]:
        """Entities that have the parts asked for, with their quotas; all of them when nothing is asked for.

        Args:
            exact: names by entity type, None for the default of the type.
            present: types that an entity must have, whatever the name.
            strict: it must have no types but these.
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
        """The quotas of exactly this entity."""
        return self.describe(entity.names, strict=True).get(entity, {})

    def alter(
        self, changes: Mapping[QuotaEntity, Changes], *, validate_only: bool = False
    ) -> dict[QuotaEntity, KafkaError | None]:
        """Set quotas, or remove those whose value is None, all in one request; or only check that it could be done.

        Returns: by entity the broker's refusal, or None where all of its changes were made. The entities stand alone.
        """
        for entity in changes:
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
        """Which quotas apply to one client, from which of the eight levels, and why the others do not.

        Args:
            user: its principal's name without "User:".
            client_id: empty for a client that sends none: quotas of client ids do not apply to it.
            address: the IP address that it connects from; without one, connection_creation_rate is left out.
        """
        return resolve_quotas(self.describe(), user, client_id, address)

    def diff(self, wanted: Mapping[QuotaEntity, Values], *, prune: bool = False) -> list[Difference]:
        """What `apply` would change; empty where everything is as wanted.

        Args:
            wanted: for each entity all the quotas it is to have; an empty mapping removes them.
            prune: no entity that is not named is to have any.
        """
        return differences(self.describe(), wanted, prune)

    def apply(
        self, wanted: Mapping[QuotaEntity, Values], *, prune: bool = False, validate_only: bool = False
    ) -> Applied:
        """Make the quotas as wanted, with one request for all that differs; none where nothing does.

        Args: as of `diff`; ``validate_only``: only check that it could be done.
        """
        return self._apply(self.diff(wanted, prune=prune), validate_only)

    def promote_shadows(
        self, entity: QuotaEntity | None = None, keys: Collection[str] = (), *, validate_only: bool = False
    ) -> Applied:
        """Make shadow quotas the enforced ones: these get the shadows' limits, and the shadows are removed.

        One request for all. Only kbroker has shadow quotas.

        Args:
            entity: whose; None: those of all entities.
            keys: which, with or without "shadow."; none: all.
            validate_only: only check that it could be done.
        """
        return self._apply(shadow_differences(self._shadows_of(entity), keys, promote=True), validate_only)

    def drop_shadows(
        self, entity: QuotaEntity | None = None, keys: Collection[str] = (), *, validate_only: bool = False
    ) -> Applied:
        """Remove shadow quotas, with one request; enforced ones stay as they are. Args: as `promote_shadows`."""
        return self._apply(shadow_differences(self._shadows_of(entity), keys, promote=False), validate_only)

    def _shadows_of(self, entity: QuotaEntity | None) -> Mapping[QuotaEntity, Values]:
        return self.describe() if entity is None else {entity: self.of(entity)}

    def _apply(self, found: list[Difference], validate_only: bool) -> Applied:
        results = self.alter(changes_for(found), validate_only=validate_only) if found else {}
        return Applied(found, {entity: refusal for entity, refusal in results.items() if refusal is not None})

    def broker_count(self) -> int:
        """How many brokers the cluster has.

        Each enforces quotas by itself, so of several a client may get the limit of each. Only controller_mutation_rate
        holds for the cluster as a whole.
        """
        self.cluster.retry(lambda: self.cluster.fetch_metadata([]))
        return len(self.cluster.nodes)

    def _ask(self, api_key: int, body: Body) -> Body:
        def attempt() -> Body:
            response = self.cluster.request(api_key, body)
            check(response.get("ErrorCode", 0), "quotas", response.get("ErrorMessage"))
            return response

        try:
            return self.cluster.retry(attempt)
        except KafkaError as failure:
            if failure.error is not Errors.UNSUPPORTED_VERSION:
                raise
            text = f"{failure.message}: brokers have quota requests from Kafka 2.6 on"
            raise KafkaError(failure.error, text) from None


def _check_names(names: Mapping[str, str | None]) -> None:
    for kind, name in names.items():
        check_name(kind, name)


def _too_old(entity: QuotaEntity, ops: Changes, error: Errors, row: Body) -> str:
    """What INVALID_REQUEST means from a broker that does not know a key or entity type which newer ones do."""
    message = row["ErrorMessage"] or ""
    known = IP_KEYS if IP in entity.names else CLIENT_KEYS
    for key, version in KNOWN_SINCE.items():
        is_meant = not message or f"key {key}" in message or "entity type" in message
        if error is Errors.INVALID_REQUEST and is_meant and key in ops and key in known:
            return f" (this broker is too old for it: {key} came with Kafka {version}; leave it out or upgrade)"
    for key in ops:
        is_unknown = error is Errors.INVALID_REQUEST and f"key {key}" in message
        if is_unknown and is_shadow_key(key) and enforced_key(key) in known:
            return f" (this broker has no shadow quotas, which are kbroker's: leave {key} out)"
    return ""


def _entity(row: Body) -> QuotaEntity:
    return QuotaEntity.of({part["EntityType"]: part["EntityName"] for part in row["Entity"]})


def _order(entity: QuotaEntity) -> tuple[tuple[str, bool, str], ...]:
    """By type, the default before names."""
    return tuple((kind, name is not None, name or "") for kind, name in entity.parts)

"""Client quotas of any Kafka cluster: described, and altered many at a time (KIP-546, brokers from Kafka 2.6 on)."""

from collections.abc import Iterable, Mapping

from kbroker.client.cluster import Cluster, check, to_error
from kbroker.client.connection import Body
from kbroker.common.errors import Errors, KafkaError
from kbroker.common.quotas import CLIENT_KEYS, IP, IP_KEYS, QuotaEntity

DESCRIBE_CLIENT_QUOTAS, ALTER_CLIENT_QUOTAS = 48, 49
EXACT, DEFAULT, ANY = 0, 1, 2

#: What a broker must be at least to know a key; brokers that have the API know the other keys.
KNOWN_SINCE = {"controller_mutation_rate": "2.7", "connection_creation_rate": "2.8"}

Values = Mapping[str, float]
Changes = Mapping[str, float | None]


class Quotas:
    """Quota requests over a `Cluster`, which it does not own.

    Every method raises BrokerConnectionError when the cluster cannot be reached, and KafkaError UNSUPPORTED_VERSION
    for a broker without these requests. Threads: as its Cluster.
    """

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster

    def describe(
        self, exact: Mapping[str, str | None] | None = None, present: Iterable[str] = (), *, strict: bool = False
    ) -> dict[QuotaEntity, dict[str, float]]:
        """Entities that have the parts asked for, with their quotas; all of them when nothing is asked for.

        Args:
            exact: names by entity type, None for the default of the type.
            present: types that an entity must have, whatever the name.
            strict: it must have no types but these.
        """
        components: list[Body] = [
            {"EntityType": kind, "MatchType": DEFAULT if name is None else EXACT, "Match": name}
            for kind, name in (exact or {}).items()
        ]
        components += [{"EntityType": kind, "MatchType": ANY, "Match": None} for kind in present]
        body = {"Components": components, "Strict": strict}
        response = self._ask(DESCRIBE_CLIENT_QUOTAS, body)
        check(response["ErrorCode"], "quotas", response["ErrorMessage"])
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

    def _ask(self, api_key: int, body: Body) -> Body:
        try:
            return self.cluster.request(api_key, body)
        except KafkaError as failure:
            if failure.error is not Errors.UNSUPPORTED_VERSION:
                raise
            text = f"{failure.message}: brokers have quota requests from Kafka 2.6 on"
            raise KafkaError(failure.error, text) from None


def _too_old(entity: QuotaEntity, ops: Changes, error: Errors, row: Body) -> str:
    """What INVALID_REQUEST means from a broker that does not know a key or entity type which newer ones do."""
    message = row["ErrorMessage"] or ""
    known = IP_KEYS if IP in entity.names else CLIENT_KEYS
    for key, version in KNOWN_SINCE.items():
        is_meant = not message or f"key {key}" in message or "entity type" in message
        if error is Errors.INVALID_REQUEST and is_meant and key in ops and key in known:
            return f" (this broker is too old for it: {key} came with Kafka {version}; leave it out or upgrade)"
    return ""


def _entity(row: Body) -> QuotaEntity:
    return QuotaEntity.of({part["EntityType"]: part["EntityName"] for part in row["Entity"]})


def _order(entity: QuotaEntity) -> tuple[tuple[str, bool, str], ...]:
    """By type, the default before names."""
    return tuple((kind, name is not None, name or "") for kind, name in entity.parts)

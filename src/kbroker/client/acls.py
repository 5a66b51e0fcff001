"""Access control lists of any Kafka cluster: list, add, remove and explain rules."""

from collections.abc import Iterable, Mapping, Sequence

from kbroker.client.cluster import Cluster, check
from kbroker.client.connection import Body
from kbroker.common.errors import Errors, ignoring
from kbroker.common.security.acls import (
    ACL_FIELDS,
    Acl,
    AclFilter,
    Decision,
    Operation,
    PatternType,
    ResourceType,
    acl_of,
    decide,
    super_users,
)

Settings = Mapping[str, str | None]

DESCRIBE_ACLS, CREATE_ACLS, DELETE_ACLS, DESCRIBE_CONFIGS = 29, 30, 31, 32
BROKER = 4
NO_AUTHORIZER = "there is no authorizer"
#: Rules of decisions without an ACL, in words.
REASONS = {
    "SuperUser": "it is a super user (super.users)",
    "DefaultDeny": "no ACL allows it",
    "DefaultAllow": "there is no ACL about it (allow.everyone.if.no.acl.found)",
}
MAX_AT_ONCE = 1000  # maximum number of rules in one request; Kafka accepts 10,000


class Acls:
    """Requests about ACLs over a `Cluster`, which the caller owns.

    Raises (all methods): KafkaError with the broker's message; BrokerConnectionError.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def list(self, wanted: AclFilter | None = None) -> Sequence[Acl]:
        """Return the rules that match a filter, in order; all rules if it is None."""
        response = self._cluster.ask(DESCRIBE_ACLS, _filter(wanted or AclFilter()), "describing ACLs")
        found = []
        for resource in response["Resources"]:
            pattern = resource["ResourceType"], resource["ResourceName"], resource["PatternType"]
            found += [acl_of(*pattern, row) for row in resource["Acls"]]
        return sorted(found)

    def list_if_any(self, wanted: AclFilter | None = None) -> Sequence[Acl] | None:
        """Return the rules, as `list`; None if the cluster has no authorizer."""
        with ignoring(Errors.SECURITY_DISABLED):
            return self.list(wanted)
        return None

    def add(self, acls: Iterable[Acl]) -> None:
        """Add rules; existing ones are left unchanged. Raises: KafkaError; other rules may have been added."""
        wanted = [*acls]
        for start in range(0, len(wanted), MAX_AT_ONCE):
            some = wanted[start : start + MAX_AT_ONCE]
            response = self._cluster.request(CREATE_ACLS, {"Creations": [_creation(acl) for acl in some]})
            for acl, result in zip(some, response["Results"], strict=True):
                check(result["ErrorCode"], f"ACL {describe(acl)}", result["ErrorMessage"])

    def remove(self, filters: Sequence[AclFilter]) -> Sequence[Acl]:
        """Delete the rules that match any of the filters; return each deleted rule once, in order.

        Raises: KafkaError; rules of other filters may have been deleted.
        """
        found: dict[Acl, None] = {}
        for start in range(0, len(filters), MAX_AT_ONCE):
            some = [_filter(wanted) for wanted in filters[start : start + MAX_AT_ONCE]]
            for result in self._cluster.request(DELETE_ACLS, {"Filters": some})["FilterResults"]:
                check(result["ErrorCode"], "deleting ACLs", result["ErrorMessage"])
                for row in result["MatchingAcls"]:
                    check(row["ErrorCode"], "deleting an ACL", row["ErrorMessage"])
                    found[acl_of(row["ResourceType"], row["ResourceName"], row["PatternType"], row)] = None
        return sorted(found)

    def explain(
        self,
        principal: str,
        host: str,
        operation: Operation,
        kind: ResourceType,
        name: str,
        settings: Settings | None = None,
    ) -> Decision:
        """Return whether a client may perform an operation, and the rule that decides.

        Needs Describe and DescribeConfigs on the cluster. Apache Kafka does not describe `super.users`, which its
        results therefore leave out.

        Args: ``settings``: the result of `settings`, if the caller has it already.
        """
        settings = self.settings() if settings is None else settings
        if settings is not None and not settings.get("authorizer.class.name"):
            return Decision(True, NO_AUTHORIZER)
        acls = self.list_if_any(AclFilter(kind, name, PatternType.MATCH))
        if acls is None:
            return Decision(True, NO_AUTHORIZER)
        settings = settings or {}
        return decide(
            acls,
            principal,
            host,
            operation,
            kind,
            name,
            super_users=super_users(settings.get("super.users")),
            allows_without_rule=settings.get("allow.everyone.if.no.acl.found") == "true",
        )

    @staticmethod
    def hides_super_users(settings: Settings | None) -> bool:
        """Return whether the broker has an authorizer but, like Apache Kafka, does not describe its super users."""
        return settings is None or "super.users" not in settings

    def settings(self) -> Settings | None:
        """Return the settings of a broker's authorizer; None if the cluster lists no broker."""
        self._cluster.fetch_metadata([])
        nodes = sorted(self._cluster.nodes)
        if not nodes:
            return None
        names = ["authorizer.class.name", "super.users", "allow.everyone.if.no.acl.found"]
        resource = {"ResourceType": BROKER, "ResourceName": str(nodes[0]), "ConfigurationKeys": names}
        (result,) = self._cluster.request(DESCRIBE_CONFIGS, {"Resources": [resource]}, node_id=nodes[0])["Results"]
        check(result["ErrorCode"], "describing the broker's configs", result["ErrorMessage"])
        return {row["Name"]: row["Value"] for row in result["Configs"]}


def describe(acl: Acl) -> str:
    """Return a rule as one line of text."""
    pattern = "" if acl.pattern_type == PatternType.LITERAL else f"{acl.pattern_type.name.lower()} "
    return (
        f"{acl.permission.name} {acl.principal} from {acl.host}: {acl.operation.name} on {pattern}"
        f"{acl.resource_type.title} {acl.resource_name}"
    )


def _creation(acl: Acl) -> Body:
    return dict(zip(("ResourceType", "ResourceName", "ResourcePatternType", *ACL_FIELDS[3:]), acl, strict=True))


def _filter(wanted: AclFilter) -> Body:
    return dict(zip((*(f"{name}Filter" for name in ACL_FIELDS[:5]), *ACL_FIELDS[5:]), wanted, strict=True))

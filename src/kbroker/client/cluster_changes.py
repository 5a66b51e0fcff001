"""Changes that give a Kafka cluster the topics, ACLs and quotas of a file: read, compare, check and apply."""

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import partial
from typing import NamedTuple

from kbroker.client.acls import Acls, describe
from kbroker.client.admin import Admin, NewTopic, own_configs
from kbroker.client.cluster import Cluster, check
from kbroker.client.cluster_file import ACLS, QUOTAS, SECTIONS, TOPICS, USERS, ClusterContent, Topic
from kbroker.client.quotas import Difference, QuotaClient, alter_all, changes_for, differences
from kbroker.client.users import Users
from kbroker.common.configs.config_resource import ConfigChange, ConfigOperation, ConfigResourceType
from kbroker.common.errors import Errors, KafkaError, ignoring
from kbroker.common.quota_limits import limit_text
from kbroker.common.security.acls import AclFilter
from kbroker.common.units import counted

UNAUTHORIZED = (Errors.TOPIC_AUTHORIZATION_FAILED, Errors.CLUSTER_AUTHORIZATION_FAILED)


class Change(NamedTuple):
    """One line of the difference; ``before`` is None if the thing is added, ``after`` if it is removed.

    ``kind``: topic, config (of a topic), acl, quota or user. ``key``: partitions, a config, a quota or a mechanism;
    empty for a whole topic or rule.
    """

    kind: str
    name: str
    key: str
    before: str | None
    after: str | None


class Step(NamedTuple):
    """Changes made by one call; ``make``: called with ``validate_only`` to only check them, if ``can_check``."""

    changes: Sequence[Change]
    make: Callable[..., object]
    place: str = ""
    can_check: bool = False


class Plan(NamedTuple):
    """Steps in their order, and notes about differences that no step removes."""

    steps: Sequence[Step]
    notes: Sequence[str]

    @property
    def changes(self) -> list[Change]:
        """All changes, in order."""
        return [change for step in self.steps for change in step.changes]

    @property
    def removals(self) -> list[Change]:
        """The changes that remove something."""
        return [change for change in self.changes if change.after is None]

    def check(self, is_patient: bool = False) -> None:
        """Have the broker validate the steps that it can validate, without making them.

        Args: ``is_patient``: ignore refusals to a user who may only describe.
        Raises: KafkaError with the place in the file; BrokerConnectionError.
        """
        for step in self.steps:
            if step.can_check:
                with ignoring(*(UNAUTHORIZED if is_patient else ())):
                    _run(step, True)

    def apply(self) -> Iterator[Step]:
        """Make the changes, and yield each step once it is done.

        Raises: KafkaError with the place in the file for the first step that fails; the steps before it were made.
        """
        for step in self.steps:
            _run(step, False)
            yield step


def _run(step: Step, is_check: bool) -> None:
    try:
        if is_check:
            step.make(validate_only=True)
        else:
            step.make()
    except KafkaError as failure:
        raise KafkaError(failure.error, f"{step.place}{failure.message}") from failure


# ---------------------------------------------------------------- reading


def read_cluster(cluster: Cluster, sections: Collection[str], topics: Iterable[str] | None) -> ClusterContent:
    """Return the content of a cluster; ACLs are None if it has no authorizer, users if it stores no credentials.

    Rules with types or operations that this version does not have are only counted.

    Args: ``topics``: read the configs of these topics only, where they exist; None: of all but internal ones.
    Raises: KafkaError; BrokerConnectionError.
    """
    credentials = Users(cluster).credentials_if_any() if USERS in sections else None
    listed = Acls(cluster).list_if_any() if ACLS in sections else None
    acls = None if listed is None else [acl for acl in listed if acl.is_known]
    return ClusterContent(
        _topics(cluster, topics) if TOPICS in sections else None,
        acls,
        QuotaClient(cluster).describe() if QUOTAS in sections else None,
        None if credentials is None else {one[:2]: one.iterations for one in credentials},
        unknown_acls=len(listed or ()) - len(acls or ()),
    )


def _topics(cluster: Cluster, names: Iterable[str] | None) -> dict[str, Topic]:
    admin = Admin(cluster)
    wanted = None if names is None else set(names)
    described = [topic for topic in cluster.fetch_metadata(None) if wanted is not None or not topic.is_internal]
    with_configs = sorted(topic.name for topic in described if wanted is None or topic.name in wanted)
    configs = admin.describe_topic_configs(with_configs)
    found = {}
    for topic in sorted(described, key=lambda one: one.name):
        check(topic.error, f"topic {topic.name!r}")
        factors = {len(partition.replicas) for partition in topic.partitions}
        is_set = {name: value for name, value in own_configs(configs.get(topic.name, ())).items() if value is not None}
        if wanted is None or topic.name in wanted or not topic.is_internal:
            factor = factors.pop() if len(factors) == 1 else None
            found[topic.name] = Topic(topic.name, len(topic.partitions), factor, is_set)
    return found


# ---------------------------------------------------------------- comparing


def plan_changes(cluster: Cluster, wanted: ClusterContent, *, prune: bool = False) -> Plan:
    """Return the steps after which a cluster has the content of the file, in the order in which they are made.

    Topics are created before the ACLs and quotas of their users, and rules that deny before rules that allow; removals
    are last. Without ``prune`` nothing is removed: neither topics, ACLs, users and quotas that the file does not list,
    nor configs and quotas that its entries do not list. With it, sections that the file leaves out stay as they are.

    Raises: KafkaError, such as INVALID_PARTITIONS if the file has fewer partitions than the cluster, SECURITY_DISABLED
        for ACLs without an authorizer, UNSUPPORTED_VERSION for users of a cluster without credentials;
        BrokerConnectionError.
    """
    sections = [name for name in SECTIONS if getattr(wanted, name) is not None]
    found = read_cluster(cluster, sections, wanted.topics)
    planner = _Planner(cluster, wanted, found)
    planner.topics()
    planner.acls()
    planner.quotas()
    planner.users()
    if prune:
        return Plan([*planner.steps, *planner.removals], planner.notes)
    left = [change for step in planner.removals for change in step.changes]
    if left:
        things = "; ".join(_listed(kind, left) for kind in dict.fromkeys(change.kind for change in left))
        planner.notes.append(f"not in the file: {things}; --prune removes these")
    return Plan(planner.steps, planner.notes)


SHOWN = 3
NOUNS = {"topic": "topic", "config": "topic config", "acl": "ACL", "quota": "quota", "user": "credential"}


def _listed(kind: str, changes: Sequence[Change]) -> str:
    """Return a summary of the removals of a kind: 1 topic (orders), 2 topic configs (orders: retention.ms, ...)."""
    named = [change.name + (f": {change.key}" if change.key else "") for change in changes if change.kind == kind]
    more = ", ..." if len(named) > SHOWN else ""
    return f"{counted(len(named), NOUNS[kind])} ({', '.join(named[:SHOWN])}{more})"


class _Planner:
    """Collector of the steps of each section; ``removals`` have their own list."""

    def __init__(self, cluster: Cluster, wanted: ClusterContent, found: ClusterContent) -> None:
        self._cluster = cluster
        self._admin = Admin(cluster)
        self._wanted = wanted
        self._found = found
        self.steps: list[Step] = []
        self.removals: list[Step] = []
        self.notes: list[str] = []

    def _place(self, section: str, key: object) -> str:
        return self._wanted.places.get((section, key), "")

    def topics(self) -> None:
        known = self._found.topics or {}
        for topic in (self._wanted.topics or {}).values():
            if topic.name in known:
                self._alter(topic, known[topic.name])
            else:
                self._create(topic)
        if self._wanted.topics is not None:
            for name in sorted(known.keys() - self._wanted.topics.keys()):
                change = Change("topic", name, "", counted(known[name].partitions or 0, "partition"), None)
                self.removals.append(Step([change], partial(self._admin.delete_topics, [name])))

    def _create(self, topic: Topic) -> None:
        new = NewTopic(topic.name, topic.partitions or -1, topic.replication_factor or -1, topic.configs)
        count = "partitions by default" if topic.partitions is None else counted(topic.partitions, "partition")
        changes = [Change("topic", topic.name, "", None, count)]
        changes += [Change("config", topic.name, key, None, value) for key, value in topic.configs.items()]
        make = partial(self._admin.create_topics, [new])
        self.steps.append(Step(changes, make, self._place(TOPICS, topic.name), can_check=True))

    def _alter(self, topic: Topic, known: Topic) -> None:
        name, place = topic.name, self._place(TOPICS, topic.name)
        if topic.partitions is not None and topic.partitions != known.partitions:
            if topic.partitions < (known.partitions or 0):
                raise KafkaError(
                    Errors.INVALID_PARTITIONS,
                    f"{place}topic {name!r}: expected at least {known.partitions} partitions, which it has, got "
                    f"{topic.partitions}; partitions cannot be removed",
                )
            change = Change("topic", name, "partitions", str(known.partitions), str(topic.partitions))
            make = partial(self._admin.create_partitions, name, topic.partitions)
            self.steps.append(Step([change], make, place, can_check=True))
        if topic.replication_factor is not None and known.replication_factor not in (None, topic.replication_factor):
            self.notes.append(
                f"topic {name}: the file has replication factor {topic.replication_factor}, the cluster "
                f"{known.replication_factor}; reassign its partitions to change it"
            )
        before = known.configs
        configure = partial(self._admin.alter_configs, ConfigResourceType.TOPIC, name)
        changed = [key for key, value in topic.configs.items() if before.get(key) != value]
        if changed:
            sets = [ConfigChange(key, ConfigOperation.SET, topic.configs[key]) for key in changed]
            rows = [Change("config", name, key, before.get(key), topic.configs[key]) for key in changed]
            self.steps.append(Step(rows, partial(configure, sets), place, can_check=True))
        unset = [key for key in before if key not in topic.configs]
        if unset:
            deletes = [ConfigChange(key, ConfigOperation.DELETE) for key in unset]
            rows = [Change("config", name, key, before[key], None) for key in unset]
            self.removals.append(Step(rows, partial(configure, deletes), place, can_check=True))

    def acls(self) -> None:
        if self._wanted.acls is None:
            return
        if self._found.acls is None:
            if self._wanted.acls:
                text = "acls: expected a cluster with an authorizer, found none; leave the section out"
                raise KafkaError(Errors.SECURITY_DISABLED, text)
            return
        if self._found.unknown_acls:
            self.notes.append(unknown_acls(self._found.unknown_acls))
        client = Acls(self._cluster)
        wanted, known = dict.fromkeys(self._wanted.acls), dict.fromkeys(self._found.acls)
        added = sorted((acl for acl in wanted if acl not in known), key=lambda acl: acl.permission)  # DENY first
        removed = sorted((acl for acl in known if acl not in wanted), key=lambda acl: -acl.permission)
        if added:
            rows = [Change("acl", describe(acl), "", None, acl.permission.title) for acl in added]
            self.steps.append(Step(rows, partial(client.add, added)))
        if removed:
            rows = [Change("acl", describe(acl), "", acl.permission.title, None) for acl in removed]
            self.removals.append(Step(rows, partial(client.remove, [AclFilter(*acl) for acl in removed])))

    def quotas(self) -> None:
        if self._wanted.quotas is None:
            return
        found = differences(self._found.quotas or {}, self._wanted.quotas, prune=True)
        for steps, part in (
            (self.steps, [one for one in found if one.after is not None]),
            (self.removals, [one for one in found if one.after is None]),
        ):
            if part:
                make = partial(alter_all, QuotaClient(self._cluster), changes_for(part))
                steps.append(Step(list(map(_quota_change, part)), make, "", True))

    def users(self) -> None:
        if self._wanted.users is None:
            return
        if self._found.users is None:
            if self._wanted.users:
                text = "users: expected a cluster that stores SCRAM credentials; leave the section out"
                raise KafkaError(Errors.UNSUPPORTED_VERSION, text)
            return
        known, client = self._found.users, Users(self._cluster)
        for (user, mechanism), iterations in self._wanted.users.items():
            has = known.get((user, mechanism))
            if has is None:
                self.notes.append(
                    f"user {user} has no {mechanism} credential; `kbroker users add {user} --mechanism {mechanism}` "
                    "adds it"
                )
            elif iterations not in (None, has):
                self.notes.append(
                    f"user {user}: the file has {iterations} iterations of {mechanism}, the cluster {has}; "
                    "`kbroker users add` with the password changes it"
                )
        for user, mechanism in sorted(known.keys() - self._wanted.users.keys()):
            change = Change("user", user, mechanism, "credential", None)
            self.removals.append(Step([change], partial(client.remove, user, mechanism)))


def unknown_acls(count: int) -> str:
    """Return a note about rules of a cluster that a file cannot represent."""
    return f"{counted(count, 'ACL')} of types or operations that this version does not have, left as they are"


def _quota_change(one: Difference) -> Change:
    before, after = (None if value is None else limit_text(one.key, value) for value in (one.before, one.after))
    return Change("quota", str(one.entity), one.key, before, after)

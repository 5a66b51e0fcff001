"""Registrations of brokers and controllers. Source: ``BrokerRegistration``, ``ControllerRegistration``."""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple
from uuid import UUID

from kbroker.common.listeners import PROTOCOLS, Listener
from kbroker.metadata.image.image_errors import MetadataReplayError
from kbroker.protocol.codec import Body


class Endpoint(NamedTuple):
    """Address of a listener. ``security_protocol``: 0 PLAINTEXT, 1 SSL, 2 SASL_PLAINTEXT, 3 SASL_SSL."""

    host: str
    port: int
    security_protocol: int


class VersionRange(NamedTuple):
    """Levels of a feature that a node supports."""

    minimum: int
    maximum: int


class BrokerRegistration(NamedTuple):
    """Registration of a broker.

    ``directories``: ids of its online log directories, sorted; ``cordoned_directories``: those that get no new
    replicas, None until the broker has reported them.
    """

    broker_id: int
    epoch: int
    incarnation_id: UUID
    listeners: Mapping[str, Endpoint]
    supported_features: Mapping[str, VersionRange]
    rack: str | None
    is_fenced: bool
    in_controlled_shutdown: bool
    is_migrating_zk_broker: bool
    directories: tuple[UUID, ...]
    cordoned_directories: tuple[UUID, ...] | None

    @classmethod
    def from_record(cls, body: Body) -> "BrokerRegistration":
        """Return the registration in a RegisterBrokerRecord. Raises: MetadataReplayError for an unnamed listener."""
        cordoned = body.get("CordonedLogDirs")
        return cls(
            body["BrokerId"],
            body["BrokerEpoch"],
            body["IncarnationId"],
            _listeners(body["EndPoints"], f"broker {body['BrokerId']}"),
            _features(body["Features"]),
            body.get("Rack"),
            body.get("Fenced", True),
            body.get("InControlledShutdown", False),
            body.get("IsMigratingZkBroker", False),
            sorted_directories(body.get("LogDirs") or ()),
            None if cordoned is None else tuple(cordoned),
        )

    def changed(self, body: Body) -> "BrokerRegistration":
        """Return the registration after a BrokerRegistrationChangeRecord.

        An empty list of directories changes nothing; an empty list of cordoned directories removes all.
        Raises: MetadataReplayError for an unknown change.
        """
        fencing = self._change(body, "Fenced", (1, 0, -1))
        shutdown = self._change(body, "InControlledShutdown", (1, 0))
        directories, cordoned = body.get("LogDirs"), body.get("CordonedLogDirs")
        return self._replace(
            is_fenced=fencing == 1 if fencing else self.is_fenced,
            in_controlled_shutdown=shutdown == 1 or self.in_controlled_shutdown,
            directories=sorted_directories(directories) if directories else self.directories,
            cordoned_directories=self.cordoned_directories if cordoned is None else tuple(cordoned),
        )

    def _change(self, body: Body, field: str, allowed: tuple[int, ...]) -> int:
        change: int = body.get(field, 0)
        if change not in allowed:
            expected = ", ".join(map(str, allowed))
            raise MetadataReplayError(
                f"broker {self.broker_id}: expected {field} to be one of {expected}, found {change}"
            )
        return change

    def to_record(self) -> Body:
        """Return the body of this registration's RegisterBrokerRecord, without newer fields that have their default."""
        body: Body = {
            "BrokerId": self.broker_id,
            "IncarnationId": self.incarnation_id,
            "BrokerEpoch": self.epoch,
            "EndPoints": endpoint_rows(self.listeners),
            "Features": feature_rows(self.supported_features),
            "Rack": self.rack,
            "Fenced": self.is_fenced,
            "InControlledShutdown": self.in_controlled_shutdown,
        }
        if self.is_migrating_zk_broker:
            body["IsMigratingZkBroker"] = True
        if self.directories:
            body["LogDirs"] = list(self.directories)
        if self.cordoned_directories is not None:
            body["CordonedLogDirs"] = list(self.cordoned_directories)
        return body


class ControllerRegistration(NamedTuple):
    """Registration of a controller (KIP-919)."""

    controller_id: int
    incarnation_id: UUID
    is_zk_migration_ready: bool
    listeners: Mapping[str, Endpoint]
    supported_features: Mapping[str, VersionRange]

    @classmethod
    def from_record(cls, body: Body) -> "ControllerRegistration":
        """Return the registration in a RegisterControllerRecord.

        Raises: MetadataReplayError for an unnamed listener.
        """
        return cls(
            body["ControllerId"],
            body["IncarnationId"],
            body.get("ZkMigrationReady", False),
            _listeners(body["EndPoints"], f"controller {body['ControllerId']}"),
            _features(body["Features"]),
        )

    def to_record(self) -> Body:
        """Return the body of the RegisterControllerRecord that has this registration."""
        return {
            "ControllerId": self.controller_id,
            "IncarnationId": self.incarnation_id,
            "ZkMigrationReady": self.is_zk_migration_ready,
            "EndPoints": endpoint_rows(self.listeners),
            "Features": feature_rows(self.supported_features),
        }


def _listeners(rows: Any, node: str) -> dict[str, Endpoint]:
    found = {row["Name"]: Endpoint(row["Host"], row["Port"], row["SecurityProtocol"]) for row in rows}
    if "" in found:
        raise MetadataReplayError(f"{node}: expected a name for each listener, found an empty one")
    return found


def _features(rows: Any) -> dict[str, VersionRange]:
    return {row["Name"]: VersionRange(row["MinSupportedVersion"], row["MaxSupportedVersion"]) for row in rows}


def endpoints_of(listeners: Iterable[Listener]) -> dict[str, Endpoint]:
    """Return the advertised addresses of a broker by listener name."""
    return {one.name: Endpoint(one.host, one.port, PROTOCOLS.index(one.protocol)) for one in listeners}


def endpoint_rows(listeners: Mapping[str, Endpoint]) -> list[Body]:
    """Return addresses as the rows of a record or a request."""
    return [
        {"Name": name, "Host": one.host, "Port": one.port, "SecurityProtocol": one.security_protocol}
        for name, one in listeners.items()
    ]


def feature_rows(features: Mapping[str, tuple[int, int]]) -> list[Body]:
    """Return ranges of levels as the rows of a record or a request."""
    return [
        {"Name": name, "MinSupportedVersion": low, "MaxSupportedVersion": high}
        for name, (low, high) in features.items()
    ]


def sorted_directories(directories: Any) -> tuple[UUID, ...]:
    """Return directories in the order of Java's Uuid, which compares two signed halves of 64 bits."""
    flip = 1 << 127 | 1 << 63
    return tuple(sorted(directories, key=lambda directory: directory.int ^ flip))

"""Store of the quotas of all entities: a change is stored, and in force when the call returns."""

from __future__ import annotations

import socket
import threading
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TypeGuard

from kbroker.common.errors import Errors, KafkaError
from kbroker.common.java._string_hash import string_hash
from kbroker.common.java.java_hash import hash_order, map_hash
from kbroker.common.loggers import get_logger
from kbroker.common.quotas import IP, QuotaEntity, is_shadow_key
from kbroker.metadata.controller import Controller
from kbroker.metadata.image.delta import MetadataDelta
from kbroker.metadata.image.image import MetadataImage
from kbroker.metadata.image.record_forms import quota_entity_rows
from kbroker.metadata.records.metadata_record import MetadataRecord, metadata_record
from kbroker.quota.entity_rules import Alteration, check_entity, check_ops

logger = get_logger(__name__)

#: Host names that one request may look up: a look-up may take seconds, and occupies one of few threads.
MAX_LOOKUPS = 20

#: Called for each change with entity, key, and the value now in force or None. An ip entity has the address, not the
#: host name of the request: hooks look up no names.
QuotaHook = Callable[[QuotaEntity, str, float | None], None]


def address_of(host: str) -> str | None:
    """Return the first address of a host name or of an address in any notation, None if it has none."""
    literal = host[1:-1] if host.startswith("[") and host.endswith("]") and ":" in host else host
    try:
        return str(socket.getaddrinfo(literal, None, type=socket.SOCK_STREAM)[0][4][0])
    except (OSError, UnicodeError):
        return None


class QuotaEntityStore:
    """Quotas by entity.

    Args: ``resolve`` returns the address of a host; it may take seconds, and no lock is held meanwhile.
    Threads: any; readers take no lock (the mapping is replaced as a whole). Lock: its own, held during the hooks.
    """

    def __init__(self, controller: Controller, resolve: Callable[[str], str | None] = address_of) -> None:
        self._controller = controller
        self._resolve = resolve
        self.lock = threading.Lock()
        self._hooks: list[QuotaHook] = []
        self._quotas: Mapping[QuotaEntity, Mapping[str, float]] = {}
        #: Addresses of host names by entity and key: a shadow may have been set when the name had another address.
        self._addresses: dict[tuple[QuotaEntity, str], QuotaEntity] = {}
        #: Addresses by host name, from the look-ups of the requests that are being served.
        self._found: dict[str, list[str | None]] = {}
        self._found_lock = threading.Lock()

    def on_change(self, hook: QuotaHook) -> None:
        """Call ``hook`` for every quota that ``load`` finds and for each change once it is stored."""
        self._hooks.append(hook)

    def load(self) -> None:
        """Put the stored quotas in force. Call it before clients are served."""
        quotas = self._controller.image.client_quotas
        self._quotas = {entity: _in_map_order(values) for entity, values in quotas.items()}
        hosts = {host for host in (entity.names.get(IP) for entity in quotas) if _is_name(host)}
        self._found = {host: [self._resolve(host)] for host in hosts}
        for entity, values in quotas.items():
            for key, value in values.items():
                self._put_in_force(entity, key, value)
        self._found = {}

    def alter(
        self, alterations: Sequence[Alteration], validate_only: bool = False
    ) -> dict[QuotaEntity, KafkaError | None]:
        """Change each entity, all of its keys or none, and store the changes of the request in one transaction.

        A duplicate entity is not changed at all.
        Returns: the error or None of each entity, in the order of Kafka's response. If the changes cannot be stored, no
        entity has changed, and all get KAFKA_STORAGE_ERROR.
        """
        times = Counter(alteration.entity for alteration in alterations)
        results: dict[QuotaEntity, KafkaError | None] = {}
        accepted: dict[QuotaEntity, dict[str, float | None]] = {}
        lookups = _Lookups(self._resolve)
        for entity, ops in alterations:
            if entity in results:
                continue
            try:
                if times[entity] > 1:
                    text = f"Ignoring duplicate entity {entity}: give each once"
                    raise KafkaError(Errors.INVALID_REQUEST, text)
                accepted[entity] = check_ops(ops, check_entity(entity, lookups.has_address))
                results[entity] = None
            except KafkaError as refusal:
                results[entity] = refusal
        if not validate_only:
            with self._found_lock:
                for host, address in lookups.found.items():
                    self._found.setdefault(host, []).append(address)
            try:
                self._controller.change(lambda image: _records(image, accepted), publisher=self, frees_space=True)
            except KafkaError as refusal:
                results.update(dict.fromkeys(accepted, refusal))
            finally:
                with self._found_lock:
                    for host, address in lookups.found.items():
                        self._found[host].remove(address)
                        if not self._found[host]:
                            del self._found[host]
        return {entity: results[entity] for entity in hash_order(results, _entity_hash)}

    @property
    def count(self) -> int:
        """Number of entities with quotas."""
        return len(self._quotas)

    def find(
        self, exact: Mapping[str, str | None], present: Collection[str], strict: bool
    ) -> list[tuple[QuotaEntity, Mapping[str, float]]]:
        """Return the entities that match a filter, with their quotas, both in the order of Kafka's response.

        Args: ``exact``: names by entity type, None for the default; ``present``: types an entity must have with any
        name; ``strict``: the entity must have no other types.
        """
        found = []
        quotas = self._quotas
        for entity, values in quotas.items():
            names = entity.names
            if (
                (not strict or len(names) == len(exact) + len(present))
                and all(kind in names and names[kind] == name for kind, name in exact.items())
                and all(kind in names for kind in present)
            ):
                found.append((entity, values))
        return hash_order(found, lambda row: _entity_hash(row[0]), smallest_table=1, held=len(quotas))

    def of(self, entity: QuotaEntity) -> Mapping[str, float]:
        """Return the quotas of exactly this entity."""
        return self._quotas.get(entity, {})

    def of_address(self, entity: QuotaEntity) -> Mapping[str, float]:
        """Return the quotas of an address, including those of host names with this address."""
        found = dict(self.of(entity))
        for (host, key), address in tuple(self._addresses.items()):
            value = self.of(host).get(key)
            if address == entity and value is not None:
                found[key] = value
        return found

    # ------------------------------------------------------------ inside

    def concerns(self, delta: MetadataDelta) -> bool:
        """Return whether the delta changes a quota."""
        return bool(delta.changed_quotas)

    def publish(self, delta: MetadataDelta, image: MetadataImage) -> None:
        """Put changed quotas in force."""
        changes = delta.changed_quotas
        quotas = dict(self._quotas)
        for entity in hash_order(changes, _entity_hash):
            after = image.client_quotas.get(entity, {})
            if after:
                quotas[entity] = _in_map_order(after, quotas.get(entity, {}))
            else:
                quotas.pop(entity, None)
        self._quotas = quotas
        for entity in hash_order(changes, _entity_hash):
            for key, value in changes[entity].items():
                logger.info("quota of %s: %s is %s now", entity, key, "not set" if value is None else value)
                self._put_in_force(entity, key, value)

    def _put_in_force(self, entity: QuotaEntity, key: str, value: float | None) -> None:
        """Call the hooks; they get a host name's address, or its last address for a removed quota."""
        host = entity.names.get(IP)
        if not _is_name(host):
            self._notify(entity, key, value)
            return
        before = self._addresses.pop((entity, key), None)
        address = None
        if value is not None:
            found = self._found.get(host)
            address = found[-1] if found else self._resolve(host)
        after = None if address is None else QuotaEntity.of({IP: address})
        if before is not None and before != after:
            self._notify(before, key, None)
        if after is not None:
            self._addresses[entity, key] = after
            self._notify(after, key, value)
        elif value is not None:
            logger.error("cannot put %s of %s in force: it has no address", key, entity)

    def _notify(self, entity: QuotaEntity, key: str, value: float | None) -> None:
        for hook in self._hooks:
            try:
                hook(entity, key, value)
            except Exception:  # the others are still put in force
                logger.exception("cannot put %s of %s in force", key, entity)


def _in_map_order(values: Mapping[str, float], before: Collection[str] = ()) -> dict[str, float]:
    """Return the quotas of an entity in the order of Kafka's hash map; shadows, which Kafka lacks, follow.

    Args: ``before``: the keys before the change, in order; Kafka adds new keys in the order of another hash map.
    """
    if len(values) == 1:
        return dict(values)
    added = hash_order([key for key in values if key not in before], string_hash)
    kept = [key for key in (*before, *added) if key in values and not is_shadow_key(key)]
    shadows = sorted(filter(is_shadow_key, values))
    return {key: values[key] for key in (*hash_order(kept, string_hash, smallest_table=1), *shadows)}


def _entity_hash(entity: QuotaEntity) -> int:
    """Return the hash of ``ClientQuotaEntity``."""
    return 31 + map_hash(entity.names)


class _Lookups:
    """Look-ups of one request, at most ``MAX_LOOKUPS``.

    Attributes: ``found``: addresses by host name.
    """

    def __init__(self, resolve: Callable[[str], str | None]) -> None:
        self._resolve = resolve
        self._left = MAX_LOOKUPS
        self.found: dict[str, str | None] = {}

    def has_address(self, host: str) -> bool:
        """Return whether a host has an address. Raises: KafkaError INVALID_REQUEST after too many look-ups."""
        if not _is_name(host):
            return True
        if self._left == 0:
            text = f"More than {MAX_LOOKUPS} host names in one request: use addresses, or several requests"
            raise KafkaError(Errors.INVALID_REQUEST, text)
        self._left -= 1
        self.found[host] = self._resolve(host)
        return self.found[host] is not None


def _is_name(host: str | None) -> TypeGuard[str]:
    """Return whether a host must be looked up: it is neither an address nor the default entity's None."""
    if host is None:
        return False
    import ipaddress

    try:
        if "%" in host:  # Python accepts any text of any length as the zone after it
            return True
        ipaddress.ip_address(host)
    except ValueError:
        return True
    return False


def _records(image: MetadataImage, accepted: Mapping[QuotaEntity, Mapping[str, float | None]]) -> list[MetadataRecord]:
    """Return the records of the changes that are not in force yet."""
    records = []
    for entity in hash_order(accepted, _entity_hash):
        before = image.client_quotas.get(entity, {})
        for key, value in accepted[entity].items():
            if before.get(key) != value:
                body = {"Entity": quota_entity_rows(entity), "Key": key, "Value": value or 0.0, "Remove": value is None}
                records.append(metadata_record("ClientQuotaRecord", body))
    return records

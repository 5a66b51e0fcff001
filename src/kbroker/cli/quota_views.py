"""Output of quotas: tables and lines for people, JSON for programs."""

from collections.abc import Mapping, Sequence
from typing import Any

import click

from kbroker.cli.output import print_difference, print_json, print_table
from kbroker.client.quota_resolution import ResolvedQuota
from kbroker.client.quotas import Difference
from kbroker.common.quota_limits import json_number, limit_text
from kbroker.common.quotas import CLIENT_ID, ENTITY_TYPES, IP, USER, QuotaEntity, shown_name

Values = Mapping[str, float]


def show(found: Mapping[QuotaEntity, Values], brokers: int, as_json: bool) -> None:
    """Print quotas of entities. Args: ``brokers`` of the cluster."""
    if as_json:
        print_json([json_entry(entity, values, brokers) for entity, values in found.items()])
        return
    rows = [
        [*_cells(entity), key, limit_text(key, value)]
        for entity, values in found.items()
        for key, value in values.items()
    ]
    print_table(["USER", "CLIENT-ID", "IP", "QUOTA", "LIMIT"], rows, right=[4])


def json_entry(entity: QuotaEntity, values: Mapping[str, float | None], brokers: int = 1) -> dict[str, Any]:
    """Return an entry of a file of quotas; for several brokers with their number."""
    quotas = {key: json_number(value) for key, value in values.items()}
    return {"entity": entity.names, "quotas": quotas, **json_brokers(brokers)}


def json_brokers(brokers: int) -> dict[str, int]:
    """Return the field with the number of brokers that enforce a quota separately; none for one broker."""
    return {"brokers": brokers} if brokers > 1 else {}


def warn_of_brokers(brokers: int) -> None:
    """Print a note on stderr about limits in a cluster of several brokers."""
    if brokers > 1:
        click.echo(
            f"note: each of the {brokers} brokers enforces quotas by itself, so a client may get a limit up to "
            f"{brokers} times; only controller_mutation_rate holds for the whole cluster",
            err=True,
        )


def _cells(entity: QuotaEntity) -> list[str | None]:
    names = entity.names
    return [shown_name(names[kind]) if kind in names else None for kind in ENTITY_TYPES]


def show_resolved(resolved: Sequence[ResolvedQuota], client_id: str, brokers: int, as_json: bool) -> None:
    """Print the quotas that apply to one client."""
    if as_json:
        print_json([resolved_json(one, brokers) for one in resolved])
        return
    cells = [
        [one.key, limit_text(one.key, one.limit), one.level, one.entity and str(one.entity), shared_by(one.counted_for)]
        for one in resolved
    ]
    print_table(["QUOTA", "LIMIT", "LEVEL", "SET FOR", "COUNTED FOR"], cells, right=[1])
    if not client_id:
        click.echo("Only quotas without a client id (levels 3 and 6) apply to a client without a client id.")


def resolved_json(one: ResolvedQuota, brokers: int) -> dict[str, Any]:
    """Return one quota of a client for JSON."""
    return {
        "quota": one.key,
        "limit": json_number(one.limit),
        "level": one.level,
        "entity": None if one.entity is None else one.entity.names,
        "shared_by": shared_by(one.counted_for),
        "levels": [{**level.json(), "limit": json_number(level.limit)} for level in one.levels],
        **json_brokers(brokers),
    }


def shared_by(counted_for: QuotaEntity | None) -> str | None:
    """Return the clients that share a counter; None if no quota applies."""
    if counted_for is None:
        return None
    names = counted_for.names
    if IP in names:
        return f"ip {names[IP]}"
    if CLIENT_ID not in names:
        return f"user {names[USER]}, all clients"
    if USER not in names:
        return f"client-id {names[CLIENT_ID]}, all users"
    return f"user {names[USER]}, client-id {names[CLIENT_ID]}"


def print_differences(found: Sequence[Difference], brokers: int, as_json: bool) -> None:
    """Print differences, or the changes made."""
    if as_json:
        print_json(
            [
                {
                    "entity": entity.names,
                    "key": key,
                    "before": json_number(before),
                    "after": json_number(after),
                    **json_brokers(brokers),
                }
                for entity, key, before, after in found
            ]
        )
        return
    for entity, key, before, after in found:
        texts = [None if value is None else limit_text(key, value) for value in (before, after)]
        print_difference(f"{entity}: {key}", *texts)

"""How quotas look: tables and lines for people, JSON for programs."""

from collections.abc import Mapping, Sequence
from typing import Any

import click

from kbroker.cli.output import print_json, print_table, styled
from kbroker.cli.quota_limits import json_number, limit_text
from kbroker.cli.quota_plan import Difference
from kbroker.common.quotas import (
    CLIENT_KEYS,
    CONNECTION_CREATION_RATE,
    ENTITY_TYPES,
    IP,
    QuotaEntity,
    resolve,
    shown_name,
)

Values = Mapping[str, float]


def show(found: Mapping[QuotaEntity, Values], as_json: bool) -> None:
    if as_json:
        print_json([json_entry(entity, values) for entity, values in found.items()])
        return
    rows = [
        [*_cells(entity), key, limit_text(key, value)]
        for entity, values in found.items()
        for key, value in values.items()
    ]
    print_table(["USER", "CLIENT-ID", "IP", "QUOTA", "LIMIT"], rows, right=[4])


def json_entry(entity: QuotaEntity, values: Mapping[str, float | None]) -> dict[str, Any]:
    return {"entity": entity.names, "quotas": {key: json_number(value) for key, value in values.items()}}


def _cells(entity: QuotaEntity) -> list[str | None]:
    names = entity.names
    return [shown_name(names[kind]) if kind in names else None for kind in ENTITY_TYPES]


def show_resolved(
    found: Mapping[QuotaEntity, Values], user: str, client_id: str, ip: str | None, as_json: bool
) -> None:
    """Print which of all quotas apply to one client."""
    rows = [_resolved(found, key, user, client_id) for key in sorted(CLIENT_KEYS)]
    if ip is not None:
        rows.append(_resolved_ip(found, ip))
    if as_json:
        print_json(rows)
        return
    cells = [
        [row["quota"], limit_text(row["quota"], row["limit"]), row["level"], _set_for(row["entity"]), row["shared_by"]]
        for row in rows
    ]
    print_table(["QUOTA", "LIMIT", "LEVEL", "SET FOR", "COUNTED FOR"], cells, right=[1])
    if not client_id:
        click.echo("Only quotas without a client id (levels 3 and 6) apply to a client without a client id.")


def _resolved(found: Mapping[QuotaEntity, Values], key: str, user: str, client_id: str) -> dict[str, Any]:
    winner, user_tag, client_tag = resolve(
        [entity for entity, values in found.items() if key in values], user, client_id
    )
    row: dict[str, Any] = {"quota": key, "limit": None, "level": None, "entity": None, "shared_by": None}
    if winner is None:
        return row
    shared = {
        (True, True): f"user {user_tag}, client-id {client_tag}",
        (True, False): f"user {user_tag}, all clients",
        (False, True): f"client-id {client_tag}, all users",
        (False, False): None,
    }[bool(user_tag), bool(client_tag)]
    limit = json_number(found[winner.entity][key])
    return {**row, "limit": limit, "level": winner.level, "entity": winner.entity.names, "shared_by": shared}


def _resolved_ip(found: Mapping[QuotaEntity, Values], ip: str) -> dict[str, Any]:
    key = CONNECTION_CREATION_RATE
    row: dict[str, Any] = {"quota": key, "limit": None, "level": None, "entity": None, "shared_by": None}
    for names in ({IP: ip}, {IP: None}):
        limit = found.get(QuotaEntity.of(names), {}).get(key)
        if limit is not None:
            return {**row, "limit": json_number(limit), "entity": names, "shared_by": f"ip {ip}"}
    return row


def _set_for(names: dict[str, str | None] | None) -> str | None:
    return None if names is None else str(QuotaEntity.of(names))


def print_differences(found: Sequence[Difference], as_json: bool) -> None:
    if as_json:
        print_json(
            [
                {"entity": e.names, "key": key, "before": json_number(before), "after": json_number(after)}
                for e, key, before, after in found
            ]
        )
        return
    for entity, key, before, after in found:
        if before is None:
            click.echo(styled(f"+ {entity}: {key} {limit_text(key, after)}", fg="green"))
        elif after is None:
            click.echo(styled(f"- {entity}: {key} {limit_text(key, before)}", fg="red"))
        else:
            text = f"~ {entity}: {key} {limit_text(key, before)} -> {limit_text(key, after)}"
            click.echo(styled(text, fg="yellow"))

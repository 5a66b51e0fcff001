"""Quotas: the list, one entity with its explanation, and the change of one quota."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple
from urllib.parse import urlencode

from kbroker.client.quotas import QuotaClient, alter_all
from kbroker.common.quota_limits import limit_text, parse_limit
from kbroker.common.quotas import CLIENT_ID, CLIENT_KEYS, ENTITY_TYPES, IP, IP_KEYS, USER, QuotaEntity, shadow_key
from kbroker.common.security.acls import Operation
from kbroker.common.shown_names import entity_name
from kbroker.console.changes import Change, Difference
from kbroker.console.paging import part_of
from kbroker.console.rendering import decided, judged, measured
from kbroker.console.requests import Fields, PageError, Query, sentence
from kbroker.console.site import ROOT, Site, View, short_enough

SHOWN_SAMPLES = 11
MEANINGS = {
    "producer_byte_rate": "bytes it produces a second, such as 1MB/s",
    "consumer_byte_rate": "bytes it fetches a second, such as 10MiB/s",
    "request_percentage": "time of its requests, in percent of one thread",
    "controller_mutation_rate": "partitions that it creates and deletes a second",
    "connection_creation_rate": "connections that it opens a second",
}


class QuotaRow(NamedTuple):
    """An entity in the list; ``href``: empty if its name is too long for an address; ``limits``: pairs of key and
    value as text.
    """

    entity: QuotaEntity
    href: str
    limits: Sequence[tuple[str, str]]


class KeyRow(NamedTuple):
    """One quota of an entity: the enforced value and that of the shadow, None if not set."""

    key: str
    meaning: str
    enforced: str | None
    shadow: str | None


def quotas(site: Site, query: Query) -> View:
    """Return a page of the entities with quotas whose names contain ``q``."""
    wanted = query.text("q").strip().lower()
    with site.needs(Operation.DESCRIBE_CONFIGS):
        found = site.remember_metadata("quotas", lambda: QuotaClient(site.cluster).describe())
    kept = [one for one in found.items() if wanted in str(one[0]).lower()]
    kept.sort(key=lambda one: str(one[0]))
    part = part_of(kept, query, "quotas")
    rows = [QuotaRow(entity, short_enough(href_of(entity)), _limits(values)) for entity, values in part.rows]
    values = {"part": part, "rows": rows, "q": query.text("q").strip()}
    return View("Quotas", "quotas.html", values)


def _limits(values: Mapping[str, float]) -> list[tuple[str, str]]:
    return [(key, limit_text(key, value)) for key, value in sorted(values.items())]


# ---------------------------------------------------------------- one entity


def quota(site: Site, query: Query) -> View:
    """Return one entity: its quotas, the form to change them, and their effect on the client of this name."""
    entity = entity_of(query)
    values = _values(site, entity)
    keys = _keys(entity)
    rows = [
        KeyRow(key, MEANINGS[key], _text(key, values.get(key)), _text(key, values.get(shadow_key(key)))) for key in keys
    ]
    shown = {
        "entity": entity,
        "fixed": _fields(entity),
        "rows": rows,
        "keys": keys,
        "explained": _explained(site, entity) if site.has_broker else None,
        "fields": Fields(key=keys[0], effect="shadow"),
    }
    return View("Quotas of one", "quota.html", shown)


def _keys(entity: QuotaEntity) -> list[str]:
    return sorted(IP_KEYS if IP in entity.names else CLIENT_KEYS)


def _values(site: Site, entity: QuotaEntity) -> Mapping[str, float]:
    with site.needs(Operation.DESCRIBE_CONFIGS):
        return QuotaClient(site.cluster).of(entity)


def entity_of(query: Query) -> QuotaEntity:
    """Return the entity of the parameters: user, client-id, ip, each with ``-default`` for the default of the type.

    Raises: PageError 400.
    """
    names: dict[str, str | None] = {}
    for kind in ENTITY_TYPES:
        name, is_default = query.text(kind), bool(query.text(f"{kind}-default"))
        if name and is_default:
            raise PageError(400, f"Expected a name or the default of {kind}, got both.")
        if is_default:
            names[kind] = None
        elif name:
            names[kind] = name
    if not names:
        raise PageError(400, "Name a user, a client id, both, or an address; or choose a default.")
    if IP in names and len(names) > 1:
        raise PageError(400, "An address has its own quotas: expected it without user and client id.")
    return QuotaEntity.of(names)


def _fields(entity: QuotaEntity) -> list[tuple[str, str]]:
    """Return the parameters of an entity."""
    return [(kind, name) if name is not None else (f"{kind}-default", "1") for kind, name in entity.parts]


def href_of(entity: QuotaEntity) -> str:
    """Return the address of an entity's page."""
    return f"{ROOT}/quota?{urlencode(_fields(entity))}"


# ---------------------------------------------------------------- changing


def change(site: Site, form: Query) -> Change:
    """Return the change of one quota of an entity, validated by the broker."""
    entity = entity_of(form)
    before = _values(site, entity)
    ops = _ops(form, before, _keys(entity))
    client = QuotaClient(site.cluster)

    def alter(validate_only: bool) -> None:
        with site.needs(Operation.ALTER_CONFIGS):
            alter_all(client, {entity: ops}, validate_only=validate_only)

    alter(validate_only=True)
    lines = [
        Difference(key, _text(key, before.get(key)), _text(key, value))
        for key, value in ops.items()
        if before.get(key) != value
    ]
    state = ";".join(f"{key}={value!r}" for key, value in sorted(before.items()))
    return Change(
        f"Change quotas of {entity_name(entity)}",
        lines,
        lambda: alter(validate_only=False),
        href_of(entity),
        state=state,
    )


def _ops(form: Query, before: Mapping[str, float], keys: Sequence[str]) -> dict[str, float | None]:
    """Return the new values of a form by key, None to remove one. Raises: ValueError; PageError 400."""
    key, effect = form.choice("key", keys, ""), form.text("effect", "shadow")
    shadow = shadow_key(key)
    if effect in ("shadow", "enforce"):
        value = parse_limit(key, form.text("value"))
        return {shadow if effect == "shadow" else key: value}
    if effect == "promote":
        if shadow not in before:
            raise ValueError(f"There is no {shadow} to promote")
        return {key: before[shadow], shadow: None}
    if effect in ("drop-shadow", "remove"):
        return {shadow if effect == "drop-shadow" else key: None}
    raise PageError(400, f"effect is {effect[:40]!r}; expected shadow, enforce, promote, drop-shadow or remove.")


def _text(key: str, value: float | None) -> str | None:
    return None if value is None else limit_text(key, value)


# ---------------------------------------------------------------- explanation


class Chart(NamedTuple):
    """A sensor's windows as bars; ``limit_y`` from above in percent, None without a limit."""

    bars: Sequence[tuple[float, float, str]]
    limit_y: float | None


def explain(site: Site, query: Query) -> View:
    """Return the effect of quotas on one client."""
    user, client_id, address = query.text("user", "ANONYMOUS"), query.text("client-id"), query.text("ip")
    connection = query.text("connection") or None
    try:
        explainer = site.broker.quota_explainer
        found = explainer.explain(user or "ANONYMOUS", client_id, address or None, connection=connection)
    except (ValueError, LookupError) as error:
        raise PageError(400, sentence(str(error))) from None
    asked = {"user": found["user"], "client-id": found["client_id"], "ip": found["address"] or ""}
    return View("Explain", "explain.html", {"found": _for_page(found), "asked": asked, "is_asked": bool(query.values)})


def _explained(site: Site, entity: QuotaEntity) -> dict[str, Any] | None:
    """Return the explanation for the client that an entity names; None for a default entity, and without the ACL."""
    names = entity.names
    if None in names.values() or not site.may_describe_cluster:
        return None
    if IP in names:
        try:
            return _for_page(site.broker.quota_explainer.explain(address=names[IP]))
        except ValueError:  # a host name
            return None
    return _for_page(site.broker.quota_explainer.explain(names.get(USER) or "ANONYMOUS", names.get(CLIENT_ID) or ""))


def _for_page(found: dict[str, Any]) -> dict[str, Any]:
    """Return the explanation with its limits as text and its windows as bars."""
    for one in found["quotas"]:
        for quota in (one, one["shadow"]):
            if quota is None:
                continue
            key = one["quota"]
            quota["limit_text"] = _text(key, quota["limit"])
            quota["entity_text"] = None if quota["entity"] is None else QuotaEntity.of(quota["entity"])
            counter = quota["counter"]
            if counter is not None:
                quota["observed_text"] = measured(key, counter["observed"])
                quota["left_text"] = _left(key, counter["left"])
                quota["chart"] = _chart(key, counter, found["time_ms"])
            for level in quota["levels"]:
                level["entity_text"] = QuotaEntity.of(level["entity"])
                level["limit_text"] = _text(key, level["limit"])
    for verdict in found["verdicts"]:
        texts = judged(verdict["quota"], verdict["observed"], verdict["limit"])
        verdict["observed_text"], verdict["limit_text"] = texts
        verdict["decided_text"] = decided(verdict["refused"], verdict["delay_served_ms"])
    return found


def _left(key: str, left: float | None) -> str:
    """Return the amount that may be used now without a delay, or the excess."""
    if left is None:
        return "-"
    amount = measured(key, abs(left)).removesuffix("/s")
    return f"{amount} left" if left >= 0 else f"{amount} too much"


def _chart(key: str, counter: Mapping[str, Any], now_ms: int) -> Chart | None:
    """Return a bar for each recent window, with its rate per second, the latest at the right; None without samples."""
    window_ms = counter["sample_ms"]
    if not counter["samples"] or window_ms <= 0:
        return None
    rates = [0.0] * SHOWN_SAMPLES
    for sample in counter["samples"]:
        age = (now_ms - sample["start_ms"]) // window_ms
        if 0 <= age < SHOWN_SAMPLES:
            rates[-1 - age] += max(0.0, (sample["value"] or 0.0) * 1000 / window_ms)
    limit = counter["limit"]
    highest = max([*rates, limit or 0.0]) or 1.0
    width = 100 / SHOWN_SAMPLES
    bars = [(i * width, 100 * rate / highest, measured(key, rate)) for i, rate in enumerate(rates) if rate > 0]
    return Chart(bars, None if limit is None else 100 - 100 * limit / highest)

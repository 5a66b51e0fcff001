"""Configs of topics, brokers, loggers, groups and client metrics: each beside its documentation, default and origin."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple
from uuid import UUID

from kbroker.client.admin import ConfigEntry
from kbroker.common.configs.config_resource import ConfigChange, ConfigOperation, ConfigResourceType, ConfigSource
from kbroker.common.errors import Errors
from kbroker.common.security.acls import CLUSTER_NAME, Operation, ResourceType
from kbroker.common.units import counted
from kbroker.console.changes import Change, Difference
from kbroker.console.denied import instead
from kbroker.console.paging import part_of
from kbroker.console.requests import Fields, PageError, Query
from kbroker.console.site import Site, View, address
from kbroker.metadata.configs.config_entries import topic_entries

KINDS = {kind.name.lower().replace("_", "-"): kind for kind in ConfigResourceType}
ROWS = 100
MAX_CONFIGS = 100  # maximum number of configs in one form
ORIGINS = {
    ConfigSource.DYNAMIC_TOPIC_CONFIG: "set for this topic",
    ConfigSource.DYNAMIC_BROKER_CONFIG: "set for this broker",
    ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG: "set for all brokers",
    ConfigSource.STATIC_BROKER_CONFIG: "file of the broker",
    ConfigSource.DEFAULT_CONFIG: "default",
    ConfigSource.DYNAMIC_BROKER_LOGGER_CONFIG: "level of the logger",
    ConfigSource.DYNAMIC_CLIENT_METRICS_CONFIG: "set for this subscription",
    ConfigSource.DYNAMIC_GROUP_CONFIG: "set for this group",
}
LEVELS = ("TRACE", "DEBUG", "INFO", "WARN", "ERROR", "FATAL")


class Resource(NamedTuple):
    """A resource with configs. ``name``: empty for all brokers."""

    word: str
    kind: ConfigResourceType
    name: str

    @property
    def title(self) -> str:
        """Display name of the resource."""
        if self.kind is ConfigResourceType.BROKER and not self.name:
            return "all brokers"
        return f"{'loggers of broker' if self.kind is ConfigResourceType.BROKER_LOGGER else self.word} {self.name}"

    def acl(self, is_change: bool) -> tuple[Operation, ResourceType, str]:
        """Return the permission that showing or changing its configs needs."""
        operation = Operation.ALTER_CONFIGS if is_change else Operation.DESCRIBE_CONFIGS
        if self.kind is ConfigResourceType.TOPIC:
            return operation, ResourceType.TOPIC, self.name
        if self.kind is ConfigResourceType.GROUP:
            return operation, ResourceType.GROUP, self.name
        return operation, ResourceType.CLUSTER, CLUSTER_NAME

    @property
    def entry(self) -> str:
        """Menu entry of its pages."""
        return {ConfigResourceType.TOPIC: "topics", ConfigResourceType.GROUP: "groups"}.get(self.kind, "cluster")

    def page(self) -> str:
        """Return the address of its configs."""
        return address("configs", kind=self.word, name=self.name)


class Row(NamedTuple):
    """A config; None: sensitive or not set. ``is_set_here``: this resource overrides another origin."""

    name: str
    value: str | None
    origin: str
    default: str | None
    documentation: str
    is_read_only: bool
    is_sensitive: bool
    is_set_here: bool
    href: str


def resource_of(query: Query) -> Resource:
    """Return the resource of the parameters ``kind`` and ``name``. Raises: PageError 400."""
    word, name = query.choice("kind", KINDS), query.text("name")
    kind = KINDS[word]
    if not name and kind is not ConfigResourceType.BROKER:
        raise PageError(400, f"The name of the {word} is missing.")
    is_broker = kind in (ConfigResourceType.BROKER, ConfigResourceType.BROKER_LOGGER)
    if is_broker and name and not (name.isascii() and name.isdigit() and len(name) <= 10):
        raise PageError(400, f"name is {name[:40]!r}; expected the id of a broker.")
    return Resource(word, kind, name)


def configs(site: Site, query: Query) -> View:
    """Return a page of the configs of one resource whose names or documentation contain ``q``."""
    resource = resource_of(query)
    wanted, is_short = query.text("q").strip(), query.text("set") == "1"
    inherited = _inherited(site, resource)
    rows = [_row(resource, entry, inherited) for entry in _entries(site, resource)]
    found = [
        row
        for row in rows
        if (wanted.lower() in row.name.lower() or wanted.lower() in row.documentation.lower())
        and (not is_short or row.is_set_here)
    ]
    part = part_of(found, query, "configs", ROWS)
    values = {"resource": resource, "part": part, "rows": part.rows, "q": wanted, "set": is_short}
    return View("Configs", "configs.html", values, entry=resource.entry)


def _entries(site: Site, resource: Resource, key: str = "") -> list[ConfigEntry]:
    missing = PageError(404, f"There is no {resource.title[:300]}.")
    needed = site.needs(*resource.acl(is_change=False))
    with needed, instead(missing, Errors.UNKNOWN_TOPIC_OR_PARTITION, Errors.BROKER_NOT_AVAILABLE):
        return site.admin.describe_configs(
            resource.kind, resource.name, [key] if key else None, include_synonyms=True, include_documentation=True
        )


def _inherited(site: Site, resource: Resource) -> Mapping[str, str | None]:
    """Return the values of a topic that sets no config itself.

    Kafka describes no default of a config whose default depends on several configs of the broker.
    """
    if resource.kind is not ConfigResourceType.TOPIC or not site.has_broker:
        return {}
    return {entry["Name"]: entry["Value"] for entry in topic_entries(site.context.config, {})}


def _row(resource: Resource, entry: ConfigEntry, inherited: Mapping[str, str | None]) -> Row:
    is_default = entry.source is ConfigSource.DEFAULT_CONFIG
    default = next(
        (one.value for one in entry.synonyms if one.source is ConfigSource.DEFAULT_CONFIG), inherited.get(entry.name)
    )
    return Row(
        entry.name,
        entry.value,
        ORIGINS.get(entry.source, entry.source.name.lower()),
        entry.value if is_default else default,
        entry.documentation or "",
        entry.read_only,
        entry.is_sensitive,
        _is_set_here(resource, entry.source),
        address("config", kind=resource.word, name=resource.name, key=entry.name),
    )


def _is_set_here(resource: Resource, source: ConfigSource) -> bool:
    if resource.kind is ConfigResourceType.BROKER:
        here = ConfigSource.DYNAMIC_BROKER_CONFIG if resource.name else ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG
        return source is here
    return source in (
        ConfigSource.DYNAMIC_TOPIC_CONFIG,
        ConfigSource.DYNAMIC_CLIENT_METRICS_CONFIG,
        ConfigSource.DYNAMIC_GROUP_CONFIG,
    )


def config_lines(text: str) -> dict[str, str]:
    """Return the configs of lines such as retention.ms=60000. Raises: PageError 400."""
    found: dict[str, str] = {}
    for line in text.splitlines():
        line = line.strip()
        if not line or line.startswith("#"):
            continue
        name, equals, value = line.partition("=")
        name = name.strip()
        if not equals or not name:
            raise PageError(400, f"Expected one NAME=VALUE on each line, got {line[:60]!r}.")
        if name in found:
            raise PageError(400, f"{name[:60]} is given twice.")
        found[name] = value.strip()
    if len(found) > MAX_CONFIGS:
        raise PageError(400, f"Expected at most {MAX_CONFIGS} configs, got {len(found)}.")
    return found


def config(site: Site, query: Query) -> View:
    """Return one config with all its origins, and the form to change it."""
    resource = resource_of(query)
    entry = _entry(site, resource, query.needed("key"))
    row = _row(resource, entry, _inherited(site, resource))
    values = {
        "resource": resource,
        "row": row,
        "origins": [(one.name, one.value, ORIGINS.get(one.source, "")) for one in entry.synonyms],
        "levels": LEVELS if resource.kind is ConfigResourceType.BROKER_LOGGER else (),
        "fields": Fields(value="" if entry.value is None else entry.value),
    }
    return View("Config", "config.html", values, entry=resource.entry)


def _entry(site: Site, resource: Resource, key: str) -> ConfigEntry:
    found = [entry for entry in _entries(site, resource, key) if entry.name == key]
    if found:
        return found[0]
    if resource.kind is ConfigResourceType.BROKER and not resource.name:  # only configs that are set are described
        return ConfigEntry(key, None, ConfigSource.UNKNOWN, False, False)
    raise PageError(404, f"{resource.title[:300]} has no config {key[:100]!r}.")


def change(site: Site, form: Query) -> Change:
    """Return the change of one config, validated by the cluster."""
    resource = resource_of(form)
    entry = _entry(site, resource, form.needed("key"))
    is_removal = form.text("effect") == "remove"
    title = f"{'Remove' if is_removal else 'Set'} {entry.name} of {resource.title}"
    back = address("config", kind=resource.word, name=resource.name, key=entry.name)
    return _change(site, resource, title, [(entry, None if is_removal else form.text("value"))], back)


def _change(
    site: Site, resource: Resource, title: str, wanted: Sequence[tuple[ConfigEntry, str | None]], back: str
) -> Change:
    """Return the change that sets configs, or removes those with None, all or none, validated by the cluster."""
    changes = [
        ConfigChange(entry.name, int(ConfigOperation.DELETE if value is None else ConfigOperation.SET), value)
        for entry, value in wanted
    ]

    def request(validate_only: bool) -> None:
        with site.needs(*resource.acl(is_change=True)):
            site.admin.alter_configs(resource.kind, resource.name, changes, validate_only=validate_only)

    request(validate_only=True)
    lines = [
        _line(resource, entry, one)
        for (entry, _), one in zip(wanted, changes, strict=True)
        if not _is_so(resource, entry, one)
    ]
    state = f"{[(entry.source.name, entry.value) for entry, _ in wanted]} {_topic_id(site, resource)}"
    return Change(title, lines, lambda: request(validate_only=False), resource.page(), state=state, back=back)


def edit_form(site: Site, query: Query) -> View:
    """Return the form that edits several configs: a line for each that is set here."""
    resource = resource_of(query)
    found = {entry.name: entry.value for entry in _entries(site, resource) if _is_line(resource, entry)}
    fields = Fields(configs="\n".join(f"{name}={value}" for name, value in found.items()), had=" ".join(found))
    values = {"resource": resource, "fields": fields}
    return View("Edit configs", "configs_edit.html", values, entry=resource.entry)


def _is_line(resource: Resource, entry: ConfigEntry) -> bool:
    """Return whether the form has a line for the config: not if its value is hidden, or if a line would alter it."""
    is_changeable = not (entry.read_only or entry.is_sensitive)
    value = entry.value or ""
    is_one_line = value == value.strip() and len(value.splitlines()) <= 1
    return is_changeable and _is_set_here(resource, entry.source) and is_one_line


def edit(site: Site, form: Query) -> Change:
    """Return the change of all configs whose lines differ; those whose lines were deleted are removed."""
    resource = resource_of(form)
    entries = {entry.name: entry for entry in _entries(site, resource)}
    lines: dict[str, str | None] = {**config_lines(form.text("configs"))}
    lines.update((name, None) for name in form.text("had").split() if name in entries and name not in lines)
    try:
        wanted = [(entries.get(name) or _entry(site, resource, name), value) for name, value in lines.items()]
    except PageError as error:
        raise PageError(400, error.sentence) from None  # the form again, with this problem
    different = [
        (entry, value) for entry, value in wanted if not _is_so(resource, entry, ConfigChange(entry.name, 0, value))
    ]
    title = f"Change {counted(len(different), 'config')} of {resource.title}"
    back = address("configs-edit", kind=resource.word, name=resource.name)
    return _change(site, resource, title, different, back)


def _topic_id(site: Site, resource: Resource) -> UUID | None:
    """Return the id of a topic, since its name may name another one later; None if it is hidden, or not a topic."""
    is_topic = resource.kind is ConfigResourceType.TOPIC
    return site.cluster.fetch_metadata([resource.name])[0].topic_id if is_topic else None


def _is_so(resource: Resource, entry: ConfigEntry, wanted: ConfigChange) -> bool:
    is_set_here = _is_set_here(resource, entry.source) or resource.kind is ConfigResourceType.BROKER_LOGGER
    if wanted.value is None:
        return not is_set_here
    return is_set_here and entry.value == wanted.value


def _line(resource: Resource, entry: ConfigEntry, wanted: ConfigChange) -> Difference:
    """Return the difference; values of sensitive configs are neither shown nor logged."""
    if entry.is_sensitive:
        return Difference(entry.name, "hidden", "removed" if wanted.value is None else "another value, hidden")
    after = wanted.value
    if after is None:
        others = [one for one in entry.synonyms if not _is_set_here(resource, one.source)]
        after = f"{others[0].value} ({ORIGINS.get(others[0].source, 'inherited')})" if others else "inherited"
    before = entry.value
    if before is not None and not _is_set_here(resource, entry.source) and entry.source is not ConfigSource.UNKNOWN:
        before = f"{before} ({ORIGINS.get(entry.source, 'inherited')})"
    return Difference(entry.name, before, after)

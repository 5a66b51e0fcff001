"""The pages of the console, their menu, and the actions of their forms."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from kbroker.console.changes import Action
from kbroker.console.requests import Query
from kbroker.console.site import Download, Json, Site, View
from kbroker.console.views import (
    acls,
    clients,
    cluster,
    configs,
    group_changes,
    groups,
    messages,
    overview,
    produce,
    quotas,
    slow_requests,
    throttles,
    tokens,
    topic_changes,
    topics,
    transactions,
    users,
)

Result = View | Download | Json


class Page(NamedTuple):
    """A page. ``entry``: its menu entry; ``needs_broker``: it reads the parts of a broker in the same process.

    ``checks_acls``: the page checks the ACLs itself, or the cluster does with its requests; otherwise the page requires
    Describe on the cluster.
    """

    make: Callable[[Site, Query], Result]
    entry: str
    needs_broker: bool = False
    checks_acls: bool = True


class Entry(NamedTuple):
    """An entry of the menu: the address and the name of its page."""

    page: str
    name: str


class Section(NamedTuple):
    """A part of the menu. Its entries are shown while one of them is open, and the section leads to the first."""

    name: str
    entries: Sequence[Entry]


MENU = (
    Section(
        "Broker",
        (
            Entry("", "Overview"),
            Entry("cluster", "Cluster"),
            Entry("throughput", "Throughput"),
            Entry("clients", "Clients"),
            Entry("requests", "Slow requests"),
            Entry("xray", "X-ray"),
        ),
    ),
    Section("Topics", (Entry("topics", "Topics"), Entry("messages", "Messages"))),
    Section(
        "Groups",
        (Entry("groups", "Groups"), Entry("transactions", "Transactions"), Entry("hanging", "Hanging transactions")),
    ),
    Section("Quotas", (Entry("quotas", "Quotas"), Entry("throttles", "Throttles"))),
    Section(
        "Access",
        (
            Entry("acls", "ACLs"),
            Entry("acl-check", "May a user do that?"),
            Entry("users", "Users"),
            Entry("tokens", "Delegation tokens"),
        ),
    ),
)


def _internal(make: Callable[[Site, Query], Result], entry: str) -> Page:
    """Return a page about the broker's parts that requires Describe on the cluster."""
    return Page(make, entry, needs_broker=True, checks_acls=False)


PAGES: Mapping[str, Page] = {
    "": _internal(overview.overview, ""),
    "cluster": Page(cluster.cluster, "cluster"),
    "configs": Page(configs.configs, "cluster"),
    "config": Page(configs.config, "cluster"),
    "configs-edit": Page(configs.edit_form, "cluster"),
    "topics": Page(topics.topics, "topics"),
    "topic": Page(topics.topic, "topics"),
    "topic-new": Page(topic_changes.new_topic, "topics"),
    "groups": Page(groups.groups, "groups"),
    "group": Page(groups.group, "groups"),
    "group-reset": Page(group_changes.reset_form, "groups"),
    "transactions": Page(transactions.transactions, "transactions"),
    "transaction": Page(transactions.transaction, "transactions"),
    "hanging": Page(transactions.hanging, "hanging"),
    "acls": Page(acls.acls, "acls"),
    "acl-check": Page(acls.acl_check, "acl-check"),
    "acl-add": Page(acls.acl_form, "acls"),
    "users": Page(users.users, "users"),
    "tokens": Page(tokens.tokens, "tokens"),
    "messages": Page(messages.messages, "messages"),
    "message": Page(messages.message, "messages"),
    "produce": Page(produce.form, "messages"),
    "records": Page(messages.records, "messages"),
    "value": Page(messages.value, "messages"),
    "clients": _internal(clients.clients, "clients"),
    "client": _internal(clients.client, "clients"),
    "throughput": _internal(overview.throughput, "throughput"),
    "rates": _internal(overview.rates, "throughput"),
    "alive": Page(overview.alive, ""),
    "throttles": _internal(throttles.throttles, "throttles"),
    "quotas": Page(quotas.quotas, "quotas"),
    "quota": Page(quotas.quota, "quotas"),
    "explain": _internal(quotas.explain, "quotas"),
    "requests": _internal(slow_requests.slow_requests, "requests"),
    "xray": _internal(overview.xray, "xray"),
}

#: Actions of forms (see ``changes``), by the address of the form.
ACTIONS: Mapping[str, Action] = {
    "config": Action(configs.change, configs.config),
    "configs-edit": Action(configs.edit, configs.edit_form),
    "produce": Action(produce.produce, produce.form),
    "quota": Action(quotas.change, quotas.quota),
    "topic/create": Action(topic_changes.create, topic_changes.new_topic),
    "topic/delete": Action(topic_changes.delete, topics.topic),
    "topic/empty": Action(topic_changes.empty, topics.topic),
    "topic/partitions": Action(topic_changes.add_partitions, topics.topic),
    "topic/records": Action(topic_changes.delete_records, topics.topic),
    "group-reset": Action(group_changes.reset, group_changes.reset_form),
    "group/remove-member": Action(group_changes.remove, groups.group),
    "group/delete": Action(group_changes.delete, groups.group),
    "transaction/abort": Action(transactions.terminate, transactions.transaction),
    "hanging/abort": Action(transactions.abort, transactions.hanging),
    "acl-add": Action(acls.add, acls.acl_form),
    "acls/remove": Action(acls.remove, acls.acls),
    "users/add": Action(users.add, users.users),
    "users/password": Action(users.rotate, users.users),
    "users/remove": Action(users.remove, users.users),
    "tokens/create": Action(tokens.create, tokens.tokens),
    "tokens/renew": Action(tokens.renew, tokens.tokens),
    "tokens/expire": Action(tokens.expire, tokens.tokens),
}


def menu(has_broker: bool) -> Sequence[Section]:
    """Return the sections and entries whose pages can be shown."""
    found = []
    for section in MENU:
        entries = [entry for entry in section.entries if has_broker or not PAGES[entry.page].needs_broker]
        if entries:
            found.append(section._replace(entries=entries))
    return found

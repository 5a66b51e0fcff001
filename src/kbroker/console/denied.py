"""Pages for requests that the cluster's ACLs deny: they name the ACL that is missing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import NamedTuple

from kbroker.common.errors import Errors, KafkaError
from kbroker.common.security.acls import CLUSTER_NAME, Operation, ResourceType
from kbroker.console.requests import PageError

#: Type of the resource that each error is about.
KINDS = {
    Errors.TOPIC_AUTHORIZATION_FAILED: ResourceType.TOPIC,
    Errors.GROUP_AUTHORIZATION_FAILED: ResourceType.GROUP,
    Errors.CLUSTER_AUTHORIZATION_FAILED: ResourceType.CLUSTER,
    Errors.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: ResourceType.TRANSACTIONAL_ID,
    Errors.DELEGATION_TOKEN_AUTHORIZATION_FAILED: ResourceType.DELEGATION_TOKEN,
}


class Needed(NamedTuple):
    """ACL that a request of a page needs."""

    operation: Operation
    kind: ResourceType = ResourceType.CLUSTER
    name: str = CLUSTER_NAME


def denied(principal: str, operation: Operation, kind: ResourceType, name: str = CLUSTER_NAME) -> PageError:
    """Return the page for a missing ACL."""
    what = "the cluster" if kind is ResourceType.CLUSTER else f"{kind.title} {name!r}"
    who = principal or "the user of these pages"
    return PageError(403, f"No ACL allows {who} the operation {operation.title} on {what}.")


@contextmanager
def instead(page: PageError, *errors: Errors) -> Iterator[None]:
    """Show a page instead of these errors of the cluster."""
    try:
        yield
    except KafkaError as error:
        if error.error in errors:
            raise page from None
        raise


def needing(principal: str, operation: Operation, kind: ResourceType, name: str) -> AbstractContextManager[None]:
    """Replace an authorization error of the cluster by the page that names the missing ACL."""
    return instead(
        denied(principal, operation, kind, name), *(error for error, about in KINDS.items() if about is kind)
    )


def page_error(error: KafkaError, principal: str) -> PageError:
    """Return the page for an error of the cluster that the page itself did not expect."""
    kind = KINDS.get(error.error)
    if kind is not None:
        who = principal or "the user of these pages"
        return PageError(403, f"An ACL of {who} on a {kind.title} is missing: {error.message}")
    status = 404 if error.error in (Errors.UNKNOWN_TOPIC_OR_PARTITION, Errors.GROUP_ID_NOT_FOUND) else 400
    return PageError(status, f"The cluster refuses this: {error.message}")

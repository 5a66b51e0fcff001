"""Delegation tokens: listed, created, renewed and expired; the HMAC of a new one is shown once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from kbroker.client.tokens import BROKERS_DEFAULT, SecretToken, Tokens
from kbroker.common.errors import Errors, KafkaError
from kbroker.common.security.acls import Operation, ResourceType, check_principal
from kbroker.common.security.delegation_token import Principal
from kbroker.common.units import parse_duration, rounded_duration
from kbroker.console.changes import Change, Difference
from kbroker.console.denied import denied, instead
from kbroker.console.paging import part_of
from kbroker.console.rendering import exact_time
from kbroker.console.requests import PageError, Query
from kbroker.console.site import Site, View, address

REFUSED = {
    Errors.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED: "Sign in as a user: tokens belong to users that are authenticated.",
    Errors.DELEGATION_TOKEN_AUTH_DISABLED: "The brokers have no delegation.token.secret.key, so there are no tokens.",
}


class TokenRow(NamedTuple):
    """A token in the list; ``left_ms``: until it expires."""

    found: SecretToken
    left_ms: int


def tokens(site: Site, query: Query) -> View:
    """Return a page of the tokens that this user may see and whose id or owner contains ``q``."""
    wanted, refused = query.text("q").strip(), ""
    found: Sequence[SecretToken] = ()
    try:
        found = Tokens(site.cluster).list()
    except KafkaError as error:
        if error.error not in REFUSED:
            raise
        refused = REFUSED[error.error]
    kept = [one for one in found if wanted in one.token.token_id or wanted.lower() in str(one.token.owner).lower()]
    part = part_of(kept, query, "tokens")
    now_ms = site.clock.epoch_ms()
    rows = [TokenRow(one, max(0, one.token.expiry_ms - now_ms)) for one in part.rows]
    values = {"part": part, "rows": rows, "q": wanted, "refused": refused, "fields": {}}
    return View("Delegation tokens", "tokens.html", values)


# ---------------------------------------------------------------- changes


@contextmanager
def _clear_refusals() -> Iterator[None]:
    """Replace the refusals of a user or of all tokens by pages that say what to do."""
    try:
        yield
    except KafkaError as error:
        if error.error not in REFUSED:
            raise
        raise PageError(403, REFUSED[error.error]) from None


def _found(site: Site, token_id: str) -> SecretToken:
    with _clear_refusals():
        found = [one for one in Tokens(site.cluster).list() if one.token.token_id == token_id]
    if not found:
        raise ValueError(f"expected a token that this user may see, got {token_id[:60]!r}; it may have expired")
    return found[0]


def _principals(text: str) -> list[Principal]:
    for word in text.split():
        check_principal(word)
    return [Principal.parse(word) for word in text.split()]


def create(site: Site, form: Query) -> Change:
    """Return the change that creates a token, whose HMAC exists only after that."""
    owners, renewers = _principals(form.text("owner")), _principals(form.text("renewers"))
    if len(owners) > 1:
        raise ValueError(f"expected one owner, got {len(owners)}")
    given = form.text("lifetime").strip()
    lifetime_ms = parse_duration(given) if given else BROKERS_DEFAULT
    if lifetime_ms == 0:
        raise ValueError(f"expected a lifetime of at least 1 ms, got {given}")

    owner = str(owners[0]) if owners else site.identity.principal or "the user of these pages"

    @_clear_refusals()
    def apply() -> View:
        refusal = denied(site.identity.principal, Operation.CREATE_TOKENS, ResourceType.USER, owner)
        with instead(refusal, Errors.DELEGATION_TOKEN_AUTHORIZATION_FAILED):
            made = Tokens(site.cluster).create(owners[0] if owners else None, renewers, lifetime_ms)
        values = {
            "what": f"Clients log in with this token as {made.token.owner}.",
            "secrets": [("Token id", made.token.token_id), ("HMAC", made.secret), ("sasl.jaas.config", made.login)],
            "href": address("tokens"),
        }
        return View("New token", "secret.html", values)

    lines = [Difference(f"token of {owner}", None, given or "the broker's lifetime")]
    if renewers:
        lines.append(Difference("renewers", None, ", ".join(map(str, renewers))))
    notes = ["Its HMAC, the password of its clients, is shown once after this."]
    return Change(f"Create a token of {owner}", lines, apply, address("tokens"), notes=notes)


def renew(site: Site, form: Query) -> Change:
    """Return the change that renews a token."""
    found = _found(site, form.needed("token"))
    given = form.text("period").strip()
    period_ms = parse_duration(given) if given else BROKERS_DEFAULT

    after = f"{rounded_duration(period_ms)} from now" if given else "the broker's period from now"
    return Change(
        f"Renew token {found.token.token_id}",
        [Difference("expires", exact_time(found.token.expiry_ms), after)],
        _clear_refusals()(lambda: Tokens(site.cluster).renew(found.hmac, period_ms)),
        address("tokens"),
        notes=[f"It cannot be renewed beyond {exact_time(found.token.max_ms)}."],
    )


def expire(site: Site, form: Query) -> Change:
    """Return the change that expires a token."""
    found = _found(site, form.needed("token"))
    return Change(
        f"Expire token {found.token.token_id}",
        [Difference(f"token of {found.token.owner}", f"expires {exact_time(found.token.expiry_ms)}", "expired")],
        _clear_refusals()(lambda: Tokens(site.cluster).expire(found.hmac)),
        address("tokens"),
        notes=["Clients that logged in with it are disconnected when their session ends."],
    )

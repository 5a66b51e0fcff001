"""SCRAM users: added, removed, and given new passwords, which are generated and shown once."""

from __future__ import annotations

import secrets
from collections.abc import Sequence

from kbroker.client.users import DEFAULT_ITERATIONS, Credential, Users, check_name
from kbroker.common.security.acls import Operation
from kbroker.console.changes import Change, Difference
from kbroker.console.denied import Needed
from kbroker.console.paging import part_of
from kbroker.console.requests import Query
from kbroker.console.site import Site, View, address

PASSWORD_BYTES = 24
MECHANISMS = ("SCRAM-SHA-512", "SCRAM-SHA-256")
MIN_ITERATIONS, MAX_ITERATIONS = 4096, 16_384  # limits of Kafka


def users(site: Site, query: Query) -> View:
    """Return a page of the users whose names contain ``q``."""
    wanted = query.text("q").strip()
    kept = [row for row in _rows(site) if wanted.lower() in row.user.lower()]
    part = part_of(kept, query, "users")
    values = {"part": part, "q": wanted, "mechanisms": MECHANISMS, "fields": {}}
    return View("Users", "users.html", values)


def _rows(site: Site) -> Sequence[Credential]:
    with site.needs(Operation.DESCRIBE):
        return site.remember("users", lambda: Users(site.cluster).credentials())


# ---------------------------------------------------------------- changes


def _credential(site: Site, form: Query) -> tuple[str, str, Credential | None]:
    """Return user and mechanism of a form, and the current credential, None if there is none."""
    user, mechanism = form.needed("user"), form.choice("mechanism", MECHANISMS, MECHANISMS[0])
    present = [row for row in _rows(site) if (row.user, row.mechanism) == (user, mechanism)]
    return user, mechanism, present[0] if present else None


def add(site: Site, form: Query) -> Change:
    """Return the change that adds a credential; its password is generated when the change is made."""
    user, mechanism, present = _credential(site, form)
    if present is not None:
        raise ValueError(f"user {user} has a {mechanism} credential already; give it a new password instead")
    check_name(user)
    iterations = form.integer("iterations", DEFAULT_ITERATIONS, MIN_ITERATIONS, MAX_ITERATIONS)
    return _with_password(site, f"Add user {user}", user, mechanism, None, iterations)


def rotate(site: Site, form: Query) -> Change:
    """Return the change that replaces a password."""
    user, mechanism, present = _credential(site, form)
    if present is None:
        raise ValueError(f"user {user} has no {mechanism} credential")
    return _with_password(site, f"Change the password of {user}", user, mechanism, present, present.iterations)


def _with_password(
    site: Site, title: str, user: str, mechanism: str, present: Credential | None, iterations: int
) -> Change:
    def apply() -> View:
        password = secrets.token_urlsafe(PASSWORD_BYTES)
        Users(site.cluster).set(user, mechanism, password, iterations)
        values = {
            "what": f"{user} can log in with {mechanism} and this password.",
            "secrets": [("Password", password)],
            "href": address("users"),
        }
        return View("Password", "secret.html", values)

    notes = ["The password is generated, and shown once after this."]
    if present is not None:
        notes.append("The current password is no longer accepted; connections stay open until they log in again.")
    before = None if present is None else f"{present.iterations:,} iterations"
    after = f"{iterations:,} iterations" if present is None else "a new password"
    lines = [Difference(f"{user}, {mechanism}", before, after)]
    # the lines would be the same if the password was changed meanwhile
    state = site.parts.applied.last(title)
    return Change(title, lines, apply, address("users"), notes, state=state, needs=Needed(Operation.ALTER))


def remove(site: Site, form: Query) -> Change:
    """Return the change that removes a credential."""
    user, mechanism, present = _credential(site, form)
    lines = [] if present is None else [Difference(f"{user}, {mechanism}", f"{present.iterations:,} iterations", None)]
    return Change(
        f"Remove user {user}",
        lines,
        lambda: Users(site.cluster).remove(user, mechanism),
        address("users"),
        notes=["Its ACLs and quotas stay."],
        confirm=user,
        needs=Needed(Operation.ALTER),
    )

"""Changes that pages make: each is shown first, then applied exactly as shown, and logged.

To add an action, write a function from the fields of a form to a Change, and register it in ``pages.ACTIONS``:

    def delete_topic(site: Site, form: Query) -> Change:
        name = form.needed("topic")
        topic = site.admin.describe_topics([name])[0]
        return Change(
            f"Delete topic {name}",
            [Difference("partitions", str(len(topic.partitions)), None)],
            lambda: site.admin.delete_topics([name]),
            href=address("topics"),
            confirm=name,
            needs=Needed(Operation.DELETE, ResourceType.TOPIC, name),
        )

    ACTIONS = {"topic/delete": Action(delete_topic, topic_page)}

A form of a page posts its fields and the hidden field ``form_secret`` to ``/console/topic/delete/preview``. The
function reads the current state, checks the change (with ``validate_only`` where Kafka has it) and raises KafkaError,
ValueError or PageError 400 for invalid fields. The page of the action is then shown again, with the values ``problem``
and ``fields`` (the Fields of the form; the page itself sets both to empty ones). Otherwise the difference is shown with
a button. The button posts the same fields to ``/console/topic/delete/apply``. The function runs again; the change is
refused if it differs from the shown one or if this form has already made it, otherwise ``apply`` runs.
``/console/topic/delete/check`` returns only the lines of the difference or the problem, for ``hx-post`` while the user
types.

``kbroker.console.edit`` and the secret of the form are checked before the function runs.
"""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from typing import NamedTuple

from kbroker.common.errors import KafkaError
from kbroker.common.printable import printable
from kbroker.console.denied import Needed
from kbroker.console.requests import Fields, PageError, Query, sentence
from kbroker.console.site import Site, View

MAX_LINES = 200  # maximum number of shown lines of a difference; the others are counted
MAX_LOGGED = 1000  # maximum number of characters of a change in the log
HIDDEN = ("form_secret", "was", "confirm")  # fields of the mechanism itself


class Difference(NamedTuple):
    """One line of a difference; None: the value does not exist. ``is_private``: the line is not logged."""

    name: str
    before: str | None
    after: str | None
    is_private: bool = False


class Change(NamedTuple):
    """A change, not made yet.

    Args:
        title: a sentence in the imperative without its period, also used in the log line.
        lines: the difference; empty if there is nothing to change.
        apply: makes the change as it was shown; a View that it returns is shown instead of ``href``.
        href: the page after the change.
        notes: sentences about consequences.
        confirm: a text that the user must type, empty if none.
        fields: values that the preview fixed, such as offsets, which the form sends back.
        state: more about the current state, for the comparison alone.
        back: the page after a cancelled change, ``href`` if empty.
        needs: the ACL that an authorization error of ``apply`` names.
    """

    title: str
    lines: Sequence[Difference]
    apply: Callable[[], object]
    href: str
    notes: Sequence[str] = ()
    confirm: str = ""
    fields: Mapping[str, str] = {}
    state: str = ""
    back: str = ""
    needs: Needed | None = None

    @property
    def digest(self) -> str:
        """Hash of everything that is shown; an equal hash later means the same change to the same state."""
        shown = [self.title, [list(line) for line in self.lines], list(self.notes), dict(self.fields), self.state]
        return hashlib.sha256(json.dumps(shown).encode()).hexdigest()

    @property
    def line(self) -> str:
        """The change as one line of the log."""
        parts = [
            f"{line.name}: {_text(line.before)} -> {_text(line.after)}" for line in self.lines if not line.is_private
        ]
        text = f"{self.title} ({'; '.join(parts)})" if parts else self.title
        return printable(text if len(text) <= MAX_LOGGED else f"{text[:MAX_LOGGED]}...")


class Action(NamedTuple):
    """Functions of one form: from its fields to the change, and to the page of the form (for invalid fields)."""

    make: Callable[[Site, Query], Change]
    page: Callable[[Site, Query], View]


def preview(site: Site, name: str, action: Action, form: Query) -> View:
    """Return the page that shows the change, or the page of the form with the problem; nothing is changed."""
    try:
        change = _made(site, action, form)
    except PageError as error:
        if error.status != 400:
            raise
        return _form_again(site, action, form, error.sentence)
    return _shown(name, change, form, "")


def check(site: Site, action: Action, form: Query) -> View:
    """Return the lines of the difference, or the problem, as a part of a page."""
    values: dict[str, object] = {"problem": "", "change": None, "more": 0}
    try:
        change = _made(site, action, form)
        values.update(change=change, lines=change.lines[:MAX_LINES], more=max(0, len(change.lines) - MAX_LINES))
    except PageError as error:
        values["problem"] = error.sentence
    return View("Check", "change_check.html", values)


def apply(site: Site, name: str, action: Action, form: Query) -> tuple[Change, View | None]:
    """Make a change that was shown; return it and the page to show, None for the change's ``href``.

    The returned page has a status other than 200 if nothing was changed. Raises: PageError.
    """
    title = _made(site, action, form).title
    with site.parts.applied.alone("title", title):  # two forms may have been shown the same state
        return _apply(site, name, action, form)


def _apply(site: Site, name: str, action: Action, form: Query) -> tuple[Change, View | None]:
    change = _made(site, action, form)
    was = form.text("was")
    if was[: len(change.digest)] != change.digest:
        text = "This has changed since you saw the difference. Look at it again."
        return change, _shown(name, change, form, text)._replace(status=409)
    if change.confirm and form.text("confirm") != change.confirm:
        text = f"Expected {change.confirm!r} to be typed, got {form.text('confirm')[:300]!r}."
        return change, _shown(name, change, form, text)._replace(status=400)
    if not site.parts.applied.claim(was, change.title):
        text = "This form has made its change already. Apply it again only if it is to be made once more."
        return change, _shown(name, change, form, text)._replace(status=409)
    try:
        with nullcontext() if change.needs is None else site.needs(*change.needs):
            made = change.apply()
        return change, made if isinstance(made, View) else None
    except (KafkaError, ValueError) as error:
        return change, _shown(name, change, form, _sentence(error))._replace(status=400)


def _made(site: Site, action: Action, form: Query) -> Change:
    """Return the change of a form. Raises: PageError, 400 for invalid fields."""
    if not site.parts.may_edit:
        raise PageError(403, f"These pages are read-only: {site.parts.edit_setting} is off.")
    try:
        return action.make(site, form)
    except (KafkaError, ValueError) as error:
        raise PageError(400, _sentence(error)) from None


def _sentence(error: Exception) -> str:
    return sentence((error.message if isinstance(error, KafkaError) else str(error)).rstrip("."))


def _form_again(site: Site, action: Action, form: Query, problem: str) -> View:
    view = action.page(site, form)
    return view._replace(values={**view.values, "problem": problem, "fields": Fields(form.values)}, status=400)


def _shown(name: str, change: Change, form: Query, problem: str) -> View:
    fixed = {field: text for field, text in form.values.items() if field not in HIDDEN}
    values = {
        "action": name,
        "change": change,
        "lines": change.lines[:MAX_LINES],
        "more": max(0, len(change.lines) - MAX_LINES),
        "fixed": {**fixed, **change.fields},
        "was": change.digest + secrets.token_hex(8),  # makes each form unique
        "problem": problem,
    }
    return View(change.title, "change.html", values)


def _text(value: str | None) -> str:
    return "none" if value is None else value

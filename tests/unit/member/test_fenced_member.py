"""Members that are fenced."""

from types import SimpleNamespace
from typing import Any

import pytest

from kbroker.member import member as module
from kbroker.member.member import Member

FENCED, UNFENCED = SimpleNamespace(is_fenced=True), SimpleNamespace(is_fenced=False)


@pytest.mark.parametrize(
    ("heartbeats", "registration", "is_fenced"),
    [(UNFENCED, UNFENCED, False), (FENCED, UNFENCED, True), (UNFENCED, FENCED, True), (UNFENCED, None, True)],
)
def test_a_member_is_fenced(heartbeats: object, registration: object, is_fenced: bool) -> None:
    """Heartbeats and the metadata may report a fence at different times; a broker without a registration is fenced."""
    member: Any = Member.__new__(Member)
    member.lifecycle = heartbeats
    member.metadata = SimpleNamespace(image=SimpleNamespace(brokers={1: registration} if registration else {}))
    member._config = SimpleNamespace(node_id=1)
    assert member.is_fenced is is_fenced


@pytest.mark.parametrize("is_awaited", [True, False])
def test_a_member_serves_once_it_is_unfenced(monkeypatch: pytest.MonkeyPatch, is_awaited: bool) -> None:
    """Without directories that can be cordoned a broker stays fenced, and serves its clients without a wait."""
    calls: list[str] = []
    monkeypatch.setattr(module, "can_cordon", lambda image: is_awaited)
    monkeypatch.setattr(module, "warn_of_fence", lambda image: calls.append("warning"))
    member: Any = Member.__new__(Member)
    member.metadata = SimpleNamespace(image=None)
    member.lifecycle = SimpleNamespace(set_ready_to_unfence=lambda: calls.append("ready"), unfenced="unfenced")
    member._wait = calls.append
    member.serve()
    assert calls == (["ready", "unfenced"] if is_awaited else ["warning"])

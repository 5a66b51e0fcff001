"""Connections to controllers."""

from types import SimpleNamespace
from typing import Any

import pytest

from kbroker.common.errors import Errors, KafkaError
from kbroker.member import controller_connection
from kbroker.member.controller_connection import ControllerConnections


def test_a_connection_is_logged_in_after_its_versions_are_negotiated(monkeypatch: pytest.MonkeyPatch) -> None:
    """A connection whose login is refused is closed."""
    calls: list[str] = []
    refusals: list[KafkaError] = []

    def authenticate(connection: object) -> None:
        calls.append("login")
        for refusal in refusals:
            raise refusal

    opened = SimpleNamespace(close=lambda: calls.append("close"))
    monkeypatch.setattr(controller_connection, "Connection", lambda *_, **__: opened)
    monkeypatch.setattr(controller_connection, "negotiate", lambda *_: calls.append("versions"))
    connections: Any = ControllerConnections.__new__(ControllerConnections)
    connections._security = SimpleNamespace(open_stream=None, authenticate=authenticate)
    assert connections.connect(("c", 9093), "broker", 1.0) is opened
    assert calls == ["versions", "login"]
    refusals.append(KafkaError(Errors.SASL_AUTHENTICATION_FAILED))
    with pytest.raises(KafkaError):
        connections.connect(("c", 9093), "broker", 1.0)
    assert calls[2:] == ["versions", "login", "close"]


def test_a_login_that_is_about_to_expire_is_renewed() -> None:
    renewed: list[object] = []
    connections: Any = ControllerConnections.__new__(ControllerConnections)
    connections._security = SimpleNamespace(authenticate=renewed.append)
    kept, expiring = (SimpleNamespace(needs_renewal=lambda is_due=is_due: is_due) for is_due in (False, True))
    connections.renew(kept)
    connections.renew(expiring)
    assert renewed == [expiring]

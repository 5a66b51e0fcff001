"""Sign-in of the users of another cluster: sessions of the same user beside each other, and changed passwords."""

from types import SimpleNamespace

import pytest

from kbroker.client.security import ClientSecurity
from kbroker.common.errors import Errors, KafkaError
from kbroker.console import remote_users
from kbroker.console.connections import Identity
from kbroker.console.passwords import SignedIn
from kbroker.console.remote_users import RemoteUsers
from kbroker.console.requests import PageError
from tests.support.errors import raising

PROPERTIES = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN", "sasl.username": "own"}


class Users:
    """Users of a cluster that accepts each password."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(ClientSecurity, "open_cluster", lambda *_, **settings: SimpleNamespace(close=lambda: None))
        self.users = RemoteUsers("broker:9092", ClientSecurity({**PROPERTIES, "sasl.password": "own"}))

    def sign_in(self, password: str) -> SignedIn | None:
        return self.users.sign_in("alice", password)


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Users:
    return Users(monkeypatch)


def test_a_user_may_sign_in_at_several_browsers(cluster: Users) -> None:
    """A session lasts while the user signs in with the same password elsewhere, and ends with another password."""
    first, second = cluster.sign_in("one"), cluster.sign_in("one")
    assert first is not None
    assert second is not None
    assert (first.is_valid(), second.is_valid()) == (True, True)
    third = cluster.sign_in("two")
    assert third is not None
    assert (first.is_valid(), second.is_valid(), third.is_valid()) == (False, False, True)
    security = cluster.users.security_of(Identity("User:alice", "127.0.0.1"))
    assert security.sasl is not None
    assert security.sasl.password == "two"


def test_a_wrong_password_ends_no_session(cluster: Users, monkeypatch: pytest.MonkeyPatch) -> None:
    first = cluster.sign_in("one")
    assert first is not None
    refused = KafkaError(Errors.SASL_AUTHENTICATION_FAILED)
    monkeypatch.setattr(ClientSecurity, "open_cluster", raising(refused))
    assert cluster.sign_in("two") is None
    assert first.is_valid()


def test_an_ended_session_has_no_other_rights(cluster: Users, monkeypatch: pytest.MonkeyPatch) -> None:
    """A page that began before another user took the place of its user does not get the console's own login."""
    monkeypatch.setattr(remote_users, "MAX_USERS", 1)
    assert cluster.sign_in("one") is not None
    assert cluster.users.sign_in("bob", "two") is not None
    with pytest.raises(PageError, match="session has ended"):
        cluster.users.security_of(Identity("User:alice", "127.0.0.1"))
    for principal in ("", "User:own"):
        security = cluster.users.security_of(Identity(principal, "127.0.0.1"))
        assert security.sasl is not None
        assert security.sasl.user == "own"

"""Delegation tokens, asked for over a connection that proves nothing."""

from tests.conformance.run import situation
from tests.conformance.talk import Talk


@situation("CreateDelegationToken", "1-3")
def tokens_for_no_known_client(talk: Talk) -> None:
    """A plaintext connection proves nothing: whatever is asked is refused."""
    body = {"Renewers": [], "MaxLifetimeMs": -1}
    talk.ask(body, "for itself")
    talk.ask({**body, "Renewers": [{"PrincipalType": "Group", "PrincipalName": "all"}]}, "a group may renew it")
    if talk.version == 3:
        for kind, name in (("User", "alice"), ("Strange", "alice"), ("Strange", ""), (None, "alice"), (None, None)):
            talk.ask({**body, "OwnerPrincipalType": kind, "OwnerPrincipalName": name}, f"for {kind} {name}")


@situation("RenewDelegationToken", "1-2")
def renewals_for_no_known_client(talk: Talk) -> None:
    """A plaintext connection proves nothing."""
    talk.ask({"Hmac": b"no such token", "RenewPeriodMs": 1000})


@situation("ExpireDelegationToken", "1-2")
def ends_for_no_known_client(talk: Talk) -> None:
    """A plaintext connection proves nothing."""
    talk.ask({"Hmac": b"no such token", "ExpiryTimePeriodMs": -1})


@situation("DescribeDelegationToken", "1-3")
def looks_at_tokens_for_no_known_client(talk: Talk) -> None:
    """A plaintext connection proves nothing."""
    talk.ask({"Owners": None}, "all")
    talk.ask({"Owners": []}, "none")
    talk.ask({"Owners": [{"PrincipalType": "User", "PrincipalName": "alice"}]}, "one")

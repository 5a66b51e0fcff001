"""Delegation tokens: requested on a plaintext connection, which is refused, and used by authenticated users."""

import base64
from functools import partial

from tests.conformance import sasl
from tests.conformance.codec import Body
from tests.conformance.run import situation
from tests.conformance.talk import Talk


@situation("CreateDelegationToken", "1-3")
def tokens_for_no_known_client(talk: Talk) -> None:
    """Create tokens on a plaintext connection, which is always refused."""
    body = {"Renewers": [], "MaxLifetimeMs": -1}
    talk.ask(body, "for itself")
    talk.ask({**body, "Renewers": [{"PrincipalType": "Group", "PrincipalName": "all"}]}, "a group may renew it")
    if talk.version == 3:
        for kind, name in (("User", "alice"), ("Strange", "alice"), ("Strange", ""), (None, "alice"), (None, None)):
            talk.ask({**body, "OwnerPrincipalType": kind, "OwnerPrincipalName": name}, f"for {kind} {name}")


def ask_for_end(talk: Talk, field: str, of: Body, user: str, period_ms: int, note: str) -> None:
    """Set another expiry time of a token, and record the days until it."""
    body = {"Hmac": of["Hmac"], field: period_ms}
    response = talk.ask(body, f"{note} {period_ms}", on=sasl.log_in(talk, user), without=OTHERS[3:])
    expiry_ms = response["ExpiryTimestampMs"]
    talk.observe(f"days {note} {period_ms}", days(expiry_ms, of["IssueTimestampMs"]) if expiry_ms > 0 else expiry_ms)


@situation("RenewDelegationToken", "1-2")
def renewals_for_no_known_client(talk: Talk) -> None:
    """Renew a token on a plaintext connection, which is refused."""
    talk.ask({"Hmac": b"no such token", "RenewPeriodMs": 1000})


@situation("ExpireDelegationToken", "1-2")
def ends_for_no_known_client(talk: Talk) -> None:
    """Expire a token on a plaintext connection, which is refused."""
    talk.ask({"Hmac": b"no such token", "ExpiryTimePeriodMs": -1})


@situation("DescribeDelegationToken", "1-3")
def looks_at_tokens_for_no_known_client(talk: Talk) -> None:
    """Describe tokens on a plaintext connection, which is refused."""
    talk.ask({"Owners": None}, "all")
    talk.ask({"Owners": []}, "none")
    talk.ask({"Owners": [{"PrincipalType": "User", "PrincipalName": "alice"}]}, "one")


# ---- on an authenticated connection

OTHERS = ("TokenId", "Hmac", "IssueTimestampMs", "ExpiryTimestampMs", "MaxTimestampMs")
DAY_MS = 86_400_000


def made(talk: Talk, body: Body, user: str = "alice") -> Body:
    """Create a token that expires at the end of the conversation, and wait until it can be used; record nothing."""
    on = sasl.log_in(talk, user)
    token = talk.quietly("CreateDelegationToken", 3, {"Renewers": [], "MaxLifetimeMs": -1, **body}, on=on)
    end = {"Hmac": token["Hmac"], "ExpiryTimePeriodMs": -1}
    talk.at_end(lambda: talk.quietly("ExpireDelegationToken", 2, end, on=sasl.log_in(talk, user)))

    def is_known() -> bool:
        rows = talk.quietly("DescribeDelegationToken", 3, {"Owners": None}, on=on)["Tokens"]
        return any(row["TokenId"] == token["TokenId"] for row in rows)

    talk.until("the token", is_known)
    return token


def days(later_ms: int, earlier_ms: int) -> float:
    """Return the days between two times, rounded so that they are equal on a slow machine."""
    return round((later_ms - earlier_ms) / DAY_MS, 2)


@situation("CreateDelegationToken", "1-3")
def tokens_of_a_user(talk: Talk) -> None:
    """Request tokens as a logged-in user: lifetime, renewers and owner."""
    alice = sasl.log_in(talk, "alice")

    def ask(body: Body, note: str) -> None:
        token = talk.ask({"Renewers": [], "MaxLifetimeMs": -1, **body}, note, on=alice, without=OTHERS)
        issued_ms = token["IssueTimestampMs"]
        lifetimes = [days(token[name], issued_ms) for name in ("ExpiryTimestampMs", "MaxTimestampMs")]
        talk.observe(f"days of {note}", lifetimes if token["Hmac"] else [issued_ms, token["MaxTimestampMs"]])
        talk.observe(f"bytes of {note}", [len(token["TokenId"]), len(token["Hmac"])])
        if token["Hmac"]:
            end = {"Hmac": token["Hmac"], "ExpiryTimePeriodMs": -1}
            talk.at_end(lambda: talk.quietly("ExpireDelegationToken", 2, end, on=sasl.log_in(talk, "alice")))

    for lifetime_ms in (-1, 0, -5, 2 * DAY_MS, 30 * DAY_MS, (1 << 63) - 1):
        ask({"MaxLifetimeMs": lifetime_ms}, f"lifetime {lifetime_ms}")
    for kind, name in (("User", "bob"), ("User", ""), ("Group", "all"), ("user", "bob")):
        ask({"Renewers": [{"PrincipalType": kind, "PrincipalName": name}]}, f"renewer {kind} {name}")
    if talk.version == 3:
        for kind_of, owner in (("User", "alice"), ("User", "bob"), ("Strange", "alice"), ("User", ""), (None, None)):
            ask({"OwnerPrincipalType": kind_of, "OwnerPrincipalName": owner}, f"owner {kind_of} {owner}")


@situation("RenewDelegationToken", "1-2")
def renewals_by_users(talk: Talk) -> None:
    """Renew a token as its owner and as its renewer, never beyond its maximum lifetime."""
    token = made(talk, {"Renewers": [{"PrincipalType": "User", "PrincipalName": "bob"}]})
    own, short = made(talk, {}), made(talk, {"MaxLifetimeMs": DAY_MS // 2})

    ask = partial(ask_for_end, talk, "RenewPeriodMs")

    for period_ms in (DAY_MS // 2, DAY_MS * 2, -1, 0, -7, (1 << 63) - 1):
        ask(token, "alice", period_ms, "by its owner")
        ask(token, "bob", period_ms, "by who may")
    ask(own, "bob", -1, "by who may not")
    ask(short, "alice", DAY_MS, "past its end")
    ask({"Hmac": b"no such token"}, "alice", -1, "no token")
    ask({"Hmac": b""}, "alice", -1, "nothing")


@situation("ExpireDelegationToken", "1-2")
def ends_by_users(talk: Talk) -> None:
    """Expire a token later, now, and again."""
    token = made(talk, {"Renewers": [{"PrincipalType": "User", "PrincipalName": "bob"}]})
    own = made(talk, {})

    ask = partial(ask_for_end, talk, "ExpiryTimePeriodMs")

    for period_ms in (DAY_MS // 2, DAY_MS * 2, DAY_MS * 20, (1 << 63) - 1):
        ask(token, "alice", period_ms, "by its owner")
        ask(token, "bob", period_ms, "by who may")
    ask(own, "bob", -1, "by who may not")
    ask(token, "bob", -1, "by who may")
    talk.until("its end", lambda: token["TokenId"] not in seen(talk))
    ask(token, "alice", -1, "again")
    ask({"Hmac": b"no such token"}, "alice", 0, "no token")


def seen(talk: Talk) -> list[str]:
    rows = talk.quietly("DescribeDelegationToken", 3, {"Owners": None}, on=sasl.log_in(talk, "alice"))["Tokens"]
    return [row["TokenId"] for row in rows]


@situation("DescribeDelegationToken", "1-3")
def looks_at_tokens_by_users(talk: Talk) -> None:
    """Describe tokens without an authorizer, when every user can see all tokens."""
    renewers = [{"PrincipalType": "User", "PrincipalName": "bob"}, {"PrincipalType": "User", "PrincipalName": "carol"}]
    mine = {made(talk, {"Renewers": renewers})["TokenId"], made(talk, {}, "bob")["TokenId"]}
    talk.until("the tokens", lambda: mine <= set(seen(talk)))
    only = {"Tokens": lambda row: row["TokenId"] in mine}
    without = ("TokenId", "Hmac", "IssueTimestamp", "ExpiryTimestamp", "MaxTimestamp")
    for user in ("alice", "bob"):
        on = sasl.log_in(talk, user)
        talk.ask({"Owners": None}, f"all, by {user}", on=on, only=only, without=without)
        talk.ask({"Owners": []}, f"none, by {user}", on=on, only=only, without=without)
        for names in (("alice",), ("bob", "alice"), ("no-such-user",), ("alice", "alice"), ("",)):
            owners = [{"PrincipalType": "User", "PrincipalName": name} for name in names]
            talk.ask({"Owners": owners}, f"of {' '.join(names)}, by {user}", on=on, only=only, without=without)
        owners = [{"PrincipalType": "Group", "PrincipalName": "alice"}]
        talk.ask({"Owners": owners}, f"of a group, by {user}", on=on, only=only, without=without)


EXTENSIONS = (
    ",tokenauth=true", ",tokenauth=TRUE", ",tokenauth=true,tokenauth=false", ",tokenauth=false,tokenauth=true",
    ",other=x,tokenauth=true", ",tokenauth=true,", ",tokenauth=true=", ",tokenauth= true", ",tokenauth=yes",
    ",tokenauth", ",tokenauth=", ",Tokenauth=true", "",
)  # fmt: skip


@situation("SaslAuthenticate", "2", over=EXTENSIONS)
def token_extension(talk: Talk, extensions: str) -> None:
    """Log in with the extension for tokens in unusual forms, twice, and truncated."""
    token = made(talk, {})
    sasl.by_scram(talk, token["TokenId"], base64.b64encode(token["Hmac"]), extensions, "log-in")


@situation("SaslAuthenticate", "2")
def log_ins_by_tokens(talk: Talk) -> None:
    """Log in by a token: the client is then the token's owner, and may not manage tokens."""
    token = made(talk, {})
    user, password = token["TokenId"], base64.b64encode(token["Hmac"])
    on = sasl.by_scram(talk, user, password, EXTENSIONS[0], "log-in")
    talk.also("CreateDelegationToken", 3, {"Renewers": [], "MaxLifetimeMs": -1}, on=on)
    talk.also("RenewDelegationToken", 2, {"Hmac": token["Hmac"], "RenewPeriodMs": -1}, on=on)
    talk.also("ExpireDelegationToken", 2, {"Hmac": token["Hmac"], "ExpiryTimePeriodMs": -1}, on=on)
    talk.also("DescribeDelegationToken", 3, {"Owners": None}, on=on)
    sasl.by_scram(talk, user, b"wrong", EXTENSIONS[0], "wrong password")
    sasl.by_scram(talk, "no-such", password, EXTENSIONS[0], "no token")
    sasl.by_scram(talk, "alice", password, EXTENSIONS[0], "the owner's name")
    sasl.by_scram(talk, user, password, EXTENSIONS[0], "its id to act as", authorization_id=user)
    sasl.by_scram(talk, user, password, EXTENSIONS[0], "its owner to act as", authorization_id="alice")
    sasl.by_scram(talk, user, password, EXTENSIONS[0], "another to act as", authorization_id="bob")
    end = {"Hmac": token["Hmac"], "ExpiryTimePeriodMs": -1}
    talk.quietly("ExpireDelegationToken", 2, end, on="alice")
    talk.until("its end", lambda: user not in seen(talk))
    sasl.by_scram(talk, user, password, EXTENSIONS[0], "ended")

"""`kbroker tokens`: delegation tokens, on any Kafka with a secured listener."""

from collections.abc import Callable
from datetime import datetime, timezone
from typing import Any

import click

from kbroker.cli.acls import principal_of
from kbroker.cli.options import CommandGroup, Duration, F, bootstrap_option, connect, decorators, json_option
from kbroker.cli.output import print_done, print_json, print_table
from kbroker.client.tokens import AT_ONCE, BROKERS_DEFAULT, SecretToken, Tokens, hmac_of
from kbroker.common.security.delegation_token import Principal

YEAR_10000_MS = 253_402_300_800_000
HEAD = ["TOKEN", "OWNER", "REQUESTER", "RENEWERS", "ISSUED", "EXPIRES", "MAX"]


def _principals(names: tuple[str, ...], option: str) -> list[Principal]:
    return [Principal.parse(principal_of(name, option)) for name in names]


@click.group(cls=CommandGroup)
def tokens() -> None:
    """List, create, renew and expire delegation tokens.

    Brokers accept these commands only over an authenticated connection that does not itself use a token: see
    --command-config.
    """


@tokens.command("list")
@bootstrap_option
@click.option(
    "--owner", "owners", multiple=True, metavar="User:NAME", help="List only tokens of this owner. Repeatable."
)
@click.option("--hmac", "with_hmac", is_flag=True, help="Print the HMACs too, which are passwords.")
@json_option
def list_tokens(bootstrap_server: str, owners: tuple[str, ...], with_hmac: bool, as_json: bool) -> None:
    """List the tokens that this user may see.

    These are the user's own tokens, and those that ACLs let the user describe.
    """
    wanted = _principals(owners, "--owner")
    with connect(bootstrap_server) as cluster:
        found = Tokens(cluster).list(wanted or None)
    if as_json:
        print_json([_document(one, with_hmac) for one in found])
        return
    rows = [
        [
            *list(_document(one, False).values())[:4],
            *map(_time, (one.token.issue_ms, one.token.expiry_ms, one.token.max_ms)),
            *([one.secret] if with_hmac else []),
        ]
        for one in found
    ]
    print_table([*HEAD, *(["HMAC"] if with_hmac else [])], rows)


@tokens.command()
@bootstrap_option
@click.option("--owner", metavar="User:NAME", help="User that logs in with the token.  [default: this user]")
@click.option(
    "--renewer", "renewers", multiple=True, metavar="User:NAME",
    help="Principal that may also renew the token. Repeatable.",
)  # fmt: skip
@click.option(
    "--max-lifetime", type=Duration(1), default=BROKERS_DEFAULT, metavar="TIME",
    help="Time until the token can no longer be renewed, such as 7d.  [default: the broker's maximum]",
)  # fmt: skip
@json_option
def create(
    bootstrap_server: str, owner: str | None, renewers: tuple[str, ...], max_lifetime: int, as_json: bool
) -> None:
    """Create a token, and print its HMAC.

    The HMAC is the password of clients that log in with the token.
    """
    owners, others = _principals(() if owner is None else (owner,), "--owner"), _principals(renewers, "--renewer")
    with connect(bootstrap_server) as cluster:
        made = Tokens(cluster).create(owners[0] if owners else None, others, max_lifetime)
    line = f"created token {made.token.token_id} of {made.token.owner}, expires {_time(made.token.expiry_ms)}"
    print_done(_document(made, True), as_json, line, f"hmac {made.secret}")


def token_arguments(command: F) -> F:
    """Add TOKEN and `--hmac`, one of which names the token, and `--bootstrap-server`."""
    return decorators(
        click.argument("token_id", required=False, metavar="[TOKEN]"),
        bootstrap_option,
        click.option("--hmac", metavar="BASE64", help="HMAC of the token, in place of its id."),
    )(command)


def _hmac(token_id: str | None, hmac: str | None) -> Callable[[Tokens], bytes]:
    """Return a function that finds the HMAC of the named token. Raises: UsageError, BadParameter."""
    if hmac is None and token_id is not None:
        return lambda tokens: tokens.hmac(token_id)
    if hmac is None or token_id is not None:
        raise click.UsageError(f"expected either TOKEN or --hmac, got {'neither' if hmac is None else 'both'}")
    try:
        found = hmac_of(hmac)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--hmac") from None
    return lambda tokens: found


@tokens.command()
@token_arguments
@click.option(
    "--period", type=Duration(1), default=BROKERS_DEFAULT, metavar="TIME",
    help="Time from now to the new expiry.  [default and maximum: the broker's delegation.token.expiry.time.ms]",
)  # fmt: skip
@json_option
def renew(token_id: str | None, bootstrap_server: str, hmac: str | None, period: int, as_json: bool) -> None:
    """Extend a token, at most to the end of its lifetime."""
    hmac_in = _hmac(token_id, hmac)
    with connect(bootstrap_server) as cluster:
        client = Tokens(cluster)
        expiry_ms = client.renew(hmac_in(client), period)
    done = {"token": token_id, "expiry_time_ms": expiry_ms}
    print_done(done, as_json, f"renewed {token_id or 'the token'}, expires {_time(expiry_ms)}")


@tokens.command()
@token_arguments
@click.option(
    "--after", type=Duration(), default=AT_ONCE, metavar="TIME", help="Time until the expiry.  [default: at once]"
)
@json_option
def expire(token_id: str | None, bootstrap_server: str, hmac: str | None, after: int, as_json: bool) -> None:
    """Expire a token, now or later.

    Clients that logged in with it are disconnected when their session expires.
    """
    hmac_in = _hmac(token_id, hmac)
    with connect(bootstrap_server) as cluster:
        client = Tokens(cluster)
        expiry_ms = client.expire(hmac_in(client), after)
    done = {"token": token_id, "expiry_time_ms": expiry_ms}
    print_done(
        done,
        as_json,
        f"expired {token_id or 'the token'}" if after <= 0 else f"{token_id or 'the token'} expires {_time(expiry_ms)}",
    )


def _document(one: SecretToken, with_hmac: bool) -> dict[str, Any]:
    token = one.token
    return {
        "token": token.token_id,
        "owner": str(token.owner),
        "requester": str(token.requester),
        "renewers": [str(renewer) for renewer in token.renewers],
        "issue_time_ms": token.issue_ms,
        "expiry_time_ms": token.expiry_ms,
        "max_time_ms": token.max_ms,
        **({"hmac": one.secret} if with_hmac else {}),
    }


def _time(ms: int) -> str:
    """Return a time in UTC, without fractions of a second; milliseconds beyond the year 9999."""
    if ms >= YEAR_10000_MS:
        return f"{ms} ms"
    return datetime.fromtimestamp(ms // 1000, timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")

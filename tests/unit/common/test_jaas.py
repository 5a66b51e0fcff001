"""Line of a JAAS configuration."""

import pytest

from kbroker.common.security.jaas import PLAIN_MODULE, SCRAM_MODULE, parse_jaas


def test_users_of_plain() -> None:
    """Kafka's example is parsed."""
    entry = parse_jaas(
        f'{PLAIN_MODULE} required username="admin" password="admin-secret" user_admin="admin-secret" '
        'user_alice="alice-secret";'
    )
    assert entry.module == PLAIN_MODULE
    assert entry.users() == {"admin": "admin-secret", "alice": "alice-secret"}
    assert entry.options["username"] == "admin"


@pytest.mark.parametrize(
    ("text", "options"),
    [
        (f"{SCRAM_MODULE} required;", {}),
        (
            f"  {SCRAM_MODULE}\n  Required\n  username='a b'\n  password=plain ; ",
            {"username": "a b", "password": "plain"},
        ),
        (f'{SCRAM_MODULE} required password="a\\"b\\\\c;=";', {"password": 'a"b\\c;='}),
        (f'{SCRAM_MODULE} required password="";', {"password": ""}),
        (rf"{SCRAM_MODULE} required password='a\tb\n\1\101\477\8\w';", {"password": "a\tb\n\1A'78w"}),
    ],
)
def test_forms(text: str, options: dict[str, str]) -> None:
    """Values may have quotes of both kinds or none, escapes and line ends."""
    assert parse_jaas(text).options == options


@pytest.mark.parametrize(
    "text",
    [
        "",
        ";",
        f"{PLAIN_MODULE} required",
        f"{PLAIN_MODULE} sometimes secret=x;",
        f"{PLAIN_MODULE} required secret;",
        f"{PLAIN_MODULE} required user_a=;",
        f'{PLAIN_MODULE} required user_a="secret;',
        f"{PLAIN_MODULE} required a=secret; {PLAIN_MODULE} required;",
        f"{PLAIN_MODULE} required = secret x;",
    ],
)
def test_wrong_lines(text: str) -> None:
    """The error shows no value of an option."""
    with pytest.raises(ValueError) as refused:
        parse_jaas(text)
    assert "secret" not in str(refused.value)


def test_an_entry_does_not_show_itself() -> None:
    """The representation of an entry hides its options, which hold passwords."""
    assert "hidden" not in repr(parse_jaas('x.Y required password="hidden";'))

"""Principals of TLS clients: distinguished names in Java's form, and Kafka's mapping rules."""

import pytest

from kbroker.security.principal_mapper import PrincipalMapper, distinguished_name


def der(tag: int, *content: bytes) -> bytes:
    """Return one DER element."""
    data = b"".join(content)
    size = len(data)
    head = bytes([size]) if size < 128 else bytes([0x82]) + size.to_bytes(2, "big")
    return bytes([tag]) + head + data


def attribute(oid: bytes, value: str | bytes, tag: int = 0x0C) -> bytes:
    data = value.encode() if isinstance(value, str) else value
    return der(0x30, der(0x06, oid), der(tag, data))


def certificate(*parts: bytes, version: bool = True) -> bytes:
    """Return the start of a certificate up to its subject, and placeholders for the rest."""
    fields = [
        der(0x02, b"\x01"),
        der(0x30, b""),
        der(0x30, der(0x31, attribute(b"\x55\x04\x03", "The issuer"))),
        der(0x30, b""),
        der(0x30, *(der(0x31, part) for part in parts)),
    ]
    if version:
        fields.insert(0, der(0xA0, der(0x02, b"\x02")))
    return der(0x30, der(0x30, *fields), der(0x30), der(0x03, b"\0"))


CN, OU, ORGANIZATION, C = b"\x55\x04\x03", b"\x55\x04\x0b", b"\x55\x04\x0a", b"\x55\x04\x06"
EMAIL = bytes.fromhex("2a864886f70d010901")


@pytest.mark.parametrize("version", [True, False])
def test_the_last_part_comes_first(version: bool) -> None:
    """RFC 2253 reverses the order of the parts."""
    data = certificate(
        attribute(C, "DE", 0x13),
        attribute(ORGANIZATION, "Example"),
        attribute(OU, "Clients"),
        attribute(CN, "alice"),
        version=version,
    )
    assert distinguished_name(data) == "CN=alice,OU=Clients,O=Example,C=DE"


def test_parts_of_several_and_unknown_attributes() -> None:
    """Attributes of one part are joined; an attribute without a keyword is written as its OID and bytes."""
    data = certificate(attribute(CN, "a") + attribute(OU, "b"), attribute(EMAIL, "x@y", 0x16))
    assert distinguished_name(data) == "1.2.840.113549.1.9.1=#1603784079,CN=a+OU=b"


@pytest.mark.parametrize(
    ("value", "tag", "text"),
    [
        ("a,b", 0x0C, "a\\,b"),
        ('+"\\<>;#=', 0x0C, '\\+\\"\\\\\\<\\>\\;\\#\\='),
        (" two ", 0x0C, "\\ two\\ "),
        ("Zoë", 0x0C, "Zoë"),
        ("Zoë".encode("utf-16-be"), 0x1E, "Zoë"),
        ("Zoë".encode("latin-1"), 0x14, "Zoë"),
        ("", 0x0C, ""),
    ],
)
def test_values_are_escaped(value: str | bytes, tag: int, text: str) -> None:
    """Special characters are escaped with a backslash, and every string type is read."""
    assert distinguished_name(certificate(attribute(CN, value, tag))) == f"CN={text}"


@pytest.mark.parametrize(
    "data", [b"", b"\x30", b"\x30\x05\x00", b"\x30\x82\xff\xff" + b"x" * 20, bytes(100), b"0" * 400]
)
def test_what_is_no_certificate(data: bytes) -> None:
    """Invalid data is refused and never read beyond its end."""
    with pytest.raises(ValueError, match=r"not an X\.509 certificate"):
        distinguished_name(data)


@pytest.mark.parametrize(
    ("rules", "name", "user"),
    [
        ("DEFAULT", "CN=alice,OU=x", "CN=alice,OU=x"),
        ("RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/", "CN=kafka,OU=ServiceUsers,O=Unknown", "kafka"),
        ("RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/,DEFAULT", "CN=duke,OU=JavaSoft,O=Sun", "CN=duke,OU=JavaSoft,O=Sun"),
        ("RULE:^CN=(.*?), *OU=(.*?)$/$1@$2/L", "CN=KAFKA,OU=Dep", "kafka@dep"),
        ("RULE:^.*[Cc][Nn]=([a-zA-Z0-9.]*).*$/$1/U , DEFAULT", "CN=alice,O=x", "ALICE"),
        ("RULE:^CN=(.*)$/$1$2-$12/", "CN=x", "x$2-x2"),
        ("RULE:^CN=x$/a\\/b/", "CN=x", "a/b"),
        ("RULE:(.*)/$1@x/", "CN=a", "CN=a@x@x"),
        ("RULE:CN=(.*?)/$1-user/", "CN=a", "-usera"),
        ("RULE:CN=(\\w+)/$1/,DEFAULT", "CN=Zoë", "CN=Zoë"),
        ("RULE:CN=([a||b~~]+)/$1/", "CN=a|b~", "a|b~"),
        ("RULE:CN=([a-z--b]+)/$1/", "CN=x.A", "x.A"),
        ("RULE:CN=([]a\\[&]+)\\[&&/$1/", "CN=a&[][&&", "a&[]"),
    ],
)
def test_rules(rules: str, name: str, user: str) -> None:
    """The first rule that matches the whole name replaces all its matches; references without a group are kept."""
    assert PrincipalMapper(rules).name_of(name) == user


def test_no_rule_and_no_certificate() -> None:
    """A client that no rule matches is refused; a client without a certificate is anonymous."""
    with pytest.raises(ValueError, match="No rules apply to CN=x"):
        PrincipalMapper("RULE:^CN=y$/y/").name_of("CN=x")
    assert PrincipalMapper().principal_of(None) == "User:ANONYMOUS"
    for name in ("alice", "a" * 200):  # the sizes of long elements have bytes of their number
        assert PrincipalMapper().principal_of(certificate(attribute(CN, name))) == f"User:CN={name}"


@pytest.mark.parametrize(
    "rules",
    ["default", "RULE:^CN=(.*$/$1/", "RULE:x", "RULE:x/y/z,oops", "RULE:[a-z&&b]*/y/",
     "RULE:[[a]b]*/y/", "RULE:[]a[b]c]*/y/"],
)  # fmt: skip
def test_wrong_rules(rules: str) -> None:
    """Invalid rules are refused at the start."""
    with pytest.raises(ValueError, match="Invalid rule"):
        PrincipalMapper(rules)


def test_a_name_with_nul_is_no_other_name() -> None:
    """NUL is escaped, because a session's principal ends at NUL."""
    assert PrincipalMapper().principal_of(certificate(attribute(CN, "admin\0x"))) == "User:CN=admin\\00x"

"""The name of a TLS client: its certificate's distinguished name in Java's form (RFC 2253), and Kafka's rules.

Source: ``SslPrincipalMapper``, ``javax.security.auth.x500.X500Principal.getName``.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterator

ANONYMOUS = "User:ANONYMOUS"

#: Attribute types named by RFC 2253; others are written by number.
_KEYWORDS = {
    "2.5.4.3": "CN",
    "2.5.4.6": "C",
    "2.5.4.7": "L",
    "2.5.4.8": "ST",
    "2.5.4.10": "O",
    "2.5.4.11": "OU",
    "2.5.4.9": "STREET",
    "0.9.2342.19200300.100.1.25": "DC",
    "0.9.2342.19200300.100.1.1": "UID",
}
_OID, _UTF8, _BMP = 0x06, 0x0C, 0x1E
_ENCODINGS = {_UTF8: "utf-8", 0x13: "ascii", 0x14: "latin-1", 0x16: "ascii", _BMP: "utf-16-be", 0x1C: "utf-32-be"}
_ESCAPED = re.compile(r'([,=+<>#;"\\])')

_RULE = r"(DEFAULT)|RULE:((?:\\.|[^\\/])*)/((?:\\.|[^\\/])*)/([LU]?).*?|(.*?)"
_SPLIT = re.compile(rf"\s*({_RULE})\s*(?:,\s*|$)")
_PARSE = re.compile(_RULE)
_CLASS = re.compile(r"\\.|\[\^?(\]?(?:\\.|[^\\\]])*)\]", re.DOTALL)
#: Class in a class, union or intersection: Java has them, while Python reads their signs as characters.
_OF_CLASSES = re.compile(r"^(?:\\.|[^\\])*?(?:\[|&&)", re.DOTALL)
_JAVA_REFERENCE = re.compile(r"\\(.)|\$(\d+)", re.DOTALL)


class PrincipalMapper:
    """``ssl.principal.mapping.rules``: the first rule that matches a distinguished name defines the user's name.

    Raises: ValueError for an invalid rule.
    Threads: any.
    """

    def __init__(self, rules: str = "DEFAULT") -> None:
        self._rules: list[Callable[[str], str | None]] = []
        for found in _SPLIT.finditer(rules.strip()):
            rule = found[1]
            match = _PARSE.match(rule)
            if match is None or match.end() != len(rule):
                raise ValueError(f"Invalid rule: {rule}")
            if match[1] is not None:
                self._rules.append(lambda name: name)
            elif match[2] is not None:
                self._rules.append(_rule(match[2], match[3], match[4]))
            elif rule:
                raise ValueError(f"Invalid rule: {rule}, expected DEFAULT or RULE:pattern/replacement/[LU]")

    def principal_of(self, certificate: bytes | None) -> str:
        """Return ``User:name`` of a client by its certificate (DER), ``User:ANONYMOUS`` if it sent none.

        Raises: ValueError when no rule applies or the certificate is invalid.
        """
        if certificate is None:
            return ANONYMOUS
        return f"User:{self.name_of(distinguished_name(certificate))}"

    def name_of(self, name: str) -> str:
        """Return the user's name. Raises: ValueError when no rule applies."""
        for rule in self._rules:
            found = rule(name)
            if found is not None:
                return found
        raise ValueError(f"No rules apply to {name}")


def _rule(pattern: str, replacement: str, case: str) -> Callable[[str], str | None]:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # `||`, `--` and `~~` in a class: characters, as in Java
            compiled = re.compile(pattern, re.ASCII)  # as Java: \w, \d and \s are ASCII
    except re.error as error:
        raise ValueError(f"Invalid rule: {pattern}: {error}") from None
    if any(_OF_CLASSES.search(found[1] or "") for found in _CLASS.finditer(pattern)):
        raise ValueError(f"Invalid rule: {pattern}: a character class in another (`[` or `&&`) is not supported")
    parts = list(_replacement(replacement, compiled.groups))

    def expand(match: re.Match[str]) -> str:
        return "".join(part if isinstance(part, str) else match[part] or "" for part in parts)

    def apply(name: str) -> str | None:
        if compiled.fullmatch(name) is None:
            return None
        found = compiled.sub(expand, name)  # all matches, as Kafka: "(.*)" matches once more at the end
        return found.lower() if case == "L" else found.upper() if case == "U" else found

    return apply


def _replacement(text: str, groups: int) -> Iterator[str | int]:
    """Yield texts and group numbers of a replacement in Java's form; a number without a group is unchanged."""
    at = 0
    for found in _JAVA_REFERENCE.finditer(text):
        yield text[at : found.start()]
        at = found.end()
        if found[1] is not None:
            yield found[1]
            continue
        digits = found[2]
        while len(digits) > 1 and int(digits) > groups:
            digits = digits[:-1]
        yield int(digits) if int(digits) <= groups else f"${digits}"
        yield found[2][len(digits) :]
    yield text[at:]


# ---- the distinguished name


def distinguished_name(certificate: bytes) -> str:
    """Return the subject of a certificate (DER), last part first: ``CN=alice,OU=Clients,O=Example``.

    Raises: ValueError when it is not a certificate.
    """
    try:
        (_, _, inside), *_ = _elements(certificate)
        (_, _, signed), *_ = _elements(inside)
        fields = [element for element in _elements(signed) if element[0] != 0xA0]  # old certificates have no version
        parts = [list(_elements(part)) for _, _, part in _elements(fields[4][2])]
        return ",".join("+".join(_attribute(inside) for _, _, inside in part) for part in reversed(parts))
    except (IndexError, ValueError) as error:
        raise ValueError(f"not an X.509 certificate: {error}") from None


def _elements(data: bytes) -> Iterator[tuple[int, bytes, bytes]]:
    """Yield tag, whole encoding and content of each DER element. Raises: ValueError, IndexError for a truncated one."""
    at = 0
    while at < len(data):
        tag, size, start = data[at], data[at + 1], at + 2
        if size & 0x80:
            count = size & 0x7F
            size = int.from_bytes(data[start : start + count], "big")
            start += count
        if start + size > len(data):
            raise ValueError("cut short")
        yield tag, data[at : start + size], data[start : start + size]
        at = start + size


def _attribute(data: bytes) -> str:
    (tag, _, oid), (kind, whole, value) = _elements(data)
    if tag != _OID:
        raise ValueError("an attribute without a type")
    number = _dotted(oid)
    word = _KEYWORDS.get(number)
    encoding = _ENCODINGS.get(kind)
    if word is None or encoding is None:
        return f"{word or number}=#{whole.hex()}"
    return f"{word}={_escape(value.decode(encoding, 'replace'))}"


def _escape(text: str) -> str:
    escaped = _ESCAPED.sub(r"\\\1", text).replace("\0", "\\00")
    inner = escaped.strip(" ")
    if not inner:
        return "\\ " * len(escaped)
    lead = len(escaped) - len(escaped.lstrip(" "))
    tail = len(escaped) - lead - len(inner)
    return "\\ " * lead + inner + "\\ " * tail


def _dotted(oid: bytes) -> str:
    first = min(oid[0] // 40, 2)
    numbers = [first, oid[0] - 40 * first]
    value = 0
    for byte in oid[1:]:
        value = value << 7 | byte & 0x7F
        if not byte & 0x80:
            numbers.append(value)
            value = 0
    return ".".join(map(str, numbers))

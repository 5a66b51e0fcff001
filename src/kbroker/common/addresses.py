"""Addresses as text: `host:port`, an IPv6 host in brackets."""


def host_port(host: str, port: int) -> str:
    """Return `host:port`, an IPv6 host in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def wrong_host_port(text: str) -> str:
    """Return the message that refuses a text that is not an address."""
    hint = ""
    if "://" in text:
        hint = "; leave the protocol out"
    elif text.count(":") > 1 and "[" not in text:
        hint = "; an IPv6 host needs brackets: [::1]:9092"
    return f"expected host:port, got {text!r}{hint}"

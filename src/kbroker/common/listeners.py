"""Listener addresses as configured: ``NAME://host:port``, with the protocol of each name."""

import re
from collections.abc import Sequence
from typing import NamedTuple

from kbroker.common.addresses import host_port, wrong_host_port
from kbroker.common.configs.config_def import ConfigError

PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
_FORM = re.compile(r"([A-Za-z0-9_.-]+)://(\[[0-9A-Fa-f:.%]*\]|[^\[\]:/]*):(-?[0-9]{1,10})")


class Listener(NamedTuple):
    """One address. ``host`` may be empty (all interfaces), ``port`` 0 (any free port)."""

    name: str
    protocol: str
    host: str
    port: int

    @property
    def has_tls(self) -> bool:
        """Return whether connections to the listener are encrypted."""
        return self.protocol in ("SSL", "SASL_SSL")

    @property
    def has_sasl(self) -> bool:
        """Return whether clients of the listener authenticate before their first request."""
        return self.protocol in ("SASL_PLAINTEXT", "SASL_SSL")

    def __str__(self) -> str:
        return f"{self.name}://{host_port(self.host, self.port)}"


def parse_listeners(key: str, words: Sequence[str], protocol_map: Sequence[str]) -> list[Listener]:
    """Return the listeners of a list of addresses.

    Raises: ConfigError for a wrong form, a port out of range, a duplicate name or port, or a name without a protocol.
    """
    protocols = _protocols(protocol_map)
    found: list[Listener] = []
    for word in words:
        match = _FORM.fullmatch(word)
        if match is None:
            raise ConfigError(
                key, word, "Not an address of the form NAME://host:port", "NAME://host:port, with commas between"
            )
        name, host, port = match[1].upper(), match[2].strip("[]"), int(match[3])
        if host == "*":  # the C library takes it for the loopback interface, and no client can resolve it
            raise ConfigError(key, word, "The host * is not an address", "an empty host or 0.0.0.0 for all interfaces")
        if not 0 <= port <= 65535:
            raise ConfigError(key, word, f"Port {port} is out of range", "ports 0 to 65535")
        if name not in protocols:
            raise ConfigError(
                key, word, f"listener.security.protocol.map does not name {name}", ", ".join(sorted(protocols))
            )
        if any(name == other.name for other in found):
            raise ConfigError(key, ",".join(words), f"Listener name {name} is used twice", "each name once")
        if key == "listeners" and port and any(port == other.port and host == other.host for other in found):
            raise ConfigError(key, ",".join(words), f"Port {port} is used twice", "each port once")
        found.append(Listener(name, protocols[name], host, port))
    if not found and key == "listeners":
        raise ConfigError(key, "", "At least one listener is needed", "NAME://host:port, with commas between")
    return found


def advertised_listeners(
    words: Sequence[str], bound: Sequence[Listener], protocol_map: Sequence[str]
) -> list[Listener]:
    """Return the advertised addresses: names must be those of listeners, hosts must be reachable addresses.

    Raises: ConfigError.
    """
    key = "advertised.listeners"
    found = parse_listeners(key, words, protocol_map)
    names = [listener.name for listener in bound]
    for listener in found:
        if listener.name not in names:
            raise ConfigError(key, str(listener), f"listeners does not name {listener.name}", ", ".join(names))
        if listener.host in ("", "0.0.0.0", "::"):
            raise ConfigError(
                key, str(listener), "Clients cannot reach this host", "a host name or address of this machine"
            )
    return found


def _protocols(protocol_map: Sequence[str]) -> dict[str, str]:
    protocols: dict[str, str] = {}
    for word in protocol_map:
        name, colon, protocol = word.partition(":")
        protocol = protocol.strip().upper()
        if not colon or protocol not in PROTOCOLS:
            allowed = "NAME:PROTOCOL, separated by commas"
            raise ConfigError("listener.security.protocol.map", word, "Not of the form NAME:PROTOCOL", allowed)
        protocols[name.strip().upper()] = protocol
    return protocols


def parse_http_address(text: str) -> tuple[str, int]:
    """Return host and port of ``9400``, ``127.0.0.1:9400``, ``[::]:9400``; the default host is the loopback interface.

    Raises: ValueError for a wrong form.
    """
    host, colon, port = text.rpartition(":")
    if not (port.isascii() and port.isdigit()) or int(port) > 65535 or (colon and not host):
        raise ValueError(wrong_host_port(text))
    return host.strip("[]") or "127.0.0.1", int(port)


def parse_loopback(text: str) -> tuple[str, int]:
    """Return host and port of an address that only this machine can reach: ``127.0.0.1:0``, ``[::1]:8080``.

    Raises: ValueError for a wrong form or any other host.
    """
    host, colon, port = text.rpartition(":")
    if not colon or not (port.isascii() and port.isdigit()) or int(port) > 65535:
        raise ValueError(wrong_host_port(text))
    host = "127.0.0.1" if host == "localhost" else host.strip("[]")
    import ipaddress

    try:
        if ipaddress.ip_address(host).is_loopback:
            return host, int(port)
    except ValueError:
        pass
    raise ValueError(f"only the loopback interface is allowed (127.0.0.1, [::1]), got {text!r}")

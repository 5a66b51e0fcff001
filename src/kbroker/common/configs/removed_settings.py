"""Settings that Kafka once had, and their replacements."""

from __future__ import annotations

import re

_SIZES = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
_QUOTA = re.compile(r"quota\.(producer|consumer)\.(default|override)")
_OVERRIDE = re.compile(r"(.+)[:=]\s*(\d+\s*[KMG]?)B?", re.IGNORECASE)


def suggest_replacement(name: str, value: str) -> str | None:
    """Return a sentence about the replacement of a removed setting; None for any other name.

    Quotas are stored, so the command in the sentence is run once. ``value``: as in the properties file, such as 2M or
    clientA:4M,clientB:10M.
    """
    if name == "delegation.token.master.key":  # its value is a secret
        return "its name is delegation.token.secret.key, with Apache Kafka 4 too"
    match = _QUOTA.fullmatch(name)
    if match is None:
        return None
    key = f"{match[1]}_byte_rate"
    if match[2] == "default":
        rate = _size_bytes(value)
        commands = [f"kbroker quotas set --client-id-default {key}={rate or 'BYTES'}"]
    else:
        found = [_OVERRIDE.fullmatch(word.strip()) for word in value.split(",")]
        commands = [
            f"kbroker quotas set --client-id {_quoted(one[1].strip())} {key}={_size_bytes(one[2]) or 'BYTES'}"
            for one in found
            if one is not None
        ] or [f"kbroker quotas set --client-id NAME {key}=BYTES"]
    return f"quotas are set at run time, and kept: {' && '.join(commands)}"


def _size_bytes(text: str) -> int:
    """Return the bytes of a number with the suffix K, M or G; 0 for any other text."""
    digits = text.strip().upper().removesuffix("B")
    unit = digits[-1:] if digits[-1:] in ("K", "M", "G") else ""
    digits = digits.removesuffix(unit).strip()
    return int(digits) * _SIZES[unit] if digits.isascii() and digits.isdigit() else 0


def _quoted(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z0-9._-]+", name) else "'" + name.replace("'", "'\\''") + "'"

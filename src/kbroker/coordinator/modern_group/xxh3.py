"""XXH3, the hash of 64 bits by which Kafka detects that the topics of a group have changed.

Seed 0 and the default secret.
Source: the specification of XXH3 in the xxHash project; Kafka uses it through hash4j (KIP-1101).
"""

from __future__ import annotations

import struct

_SECRET = bytes.fromhex(
    "b8fe6c3923a44bbe7c01812cf721ad1cded46de9839097db7240a4a4b7b3671f"
    "cb79e64eccc0e578825ad07dccff7221b8084674f743248ee03590e6813a264c"
    "3c2852bb91c300cb88d0658b1b532ea371644897a20df94e3819ef46a9deacd8"
    "a8fa763fe39c343ff9dcbbc7c70b4f1d8a51e04bcdb45931c89f7ec9d9787364"
    "eac5ac8334d3ebc3c581a0fffa1363eb170ddd51b7f0da49d316552629d4689e"
    "2b16be587d47a1fc8ff8b8d17ad031ce45cb3a8f95160428afd7fbcabb4b407e"
)
_MASK = 0xFFFFFFFFFFFFFFFF
_MASK32 = 0xFFFFFFFF
_PRIME32_1, _PRIME32_2, _PRIME32_3 = 0x9E3779B1, 0x85EBCA77, 0xC2B2AE3D
_PRIME_1, _PRIME_2, _PRIME_3 = 0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9
_PRIME_4, _PRIME_5 = 0x85EBCA77C2B2AE63, 0x27D4EB2F165667C5
_MIX_1, _MIX_2 = 0x165667919E3779F9, 0x9FB21C651E98DF25
_STRIPE, _STRIPES_A_BLOCK = 64, (192 - 64) // 8


def xxh3_64(data: bytes) -> int:
    """Return the hash of ``data``, an unsigned int of 64 bits. The data of Kafka's hashes has at least 8 bytes."""
    size = len(data)
    if size <= 16:
        return _short(data, size)
    if size <= 128:
        return _up_to_128(data, size)
    if size <= 240:
        return _up_to_240(data, size)
    return _long(data, size)


def _u32(data: bytes, at: int) -> int:
    return int.from_bytes(data[at : at + 4], "little")


def _u64(data: bytes, at: int) -> int:
    return int.from_bytes(data[at : at + 8], "little")


def _fold(a: int, b: int) -> int:
    product = a * b
    return (product & _MASK) ^ (product >> 64)


def _avalanche(value: int) -> int:
    value ^= value >> 37
    value = value * _MIX_1 & _MASK
    return value ^ value >> 32


def _rotate(value: int, bits: int) -> int:
    return (value << bits | value >> (64 - bits)) & _MASK


def _short(data: bytes, size: int) -> int:
    if size > 8:
        low = _u64(data, 0) ^ _u64(_SECRET, 24) ^ _u64(_SECRET, 32)
        high = _u64(data, size - 8) ^ _u64(_SECRET, 40) ^ _u64(_SECRET, 48)
        swapped = int.from_bytes(low.to_bytes(8, "little"), "big")
        return _avalanche((size + swapped + high + _fold(low, high)) & _MASK)
    value = (_u32(data, size - 4) + (_u32(data, 0) << 32)) ^ _u64(_SECRET, 8) ^ _u64(_SECRET, 16)
    value ^= _rotate(value, 49) ^ _rotate(value, 24)
    value = value * _MIX_2 & _MASK
    value ^= (value >> 35) + size
    value = value * _MIX_2 & _MASK
    return value ^ value >> 28


def _mix_16(data: bytes, at: int, secret_at: int) -> int:
    return _fold(_u64(data, at) ^ _u64(_SECRET, secret_at), _u64(data, at + 8) ^ _u64(_SECRET, secret_at + 8))


def _up_to_128(data: bytes, size: int) -> int:
    total = size * _PRIME_1
    for number in range((size - 1) // 32, -1, -1):
        total += _mix_16(data, 16 * number, 32 * number)
        total += _mix_16(data, size - 16 * (number + 1), 32 * number + 16)
    return _avalanche(total & _MASK)


def _up_to_240(data: bytes, size: int) -> int:
    total = size * _PRIME_1 + sum(_mix_16(data, 16 * number, 16 * number) for number in range(8))
    total = _avalanche(total & _MASK)
    total += sum(_mix_16(data, 16 * number, 16 * (number - 8) + 3) for number in range(8, size // 16))
    total += _mix_16(data, size - 16, 136 - 17)
    return _avalanche(total & _MASK)


def _long(data: bytes, size: int) -> int:
    lanes = [_PRIME32_3, _PRIME_1, _PRIME_2, _PRIME_3, _PRIME_4, _PRIME32_2, _PRIME_5, _PRIME32_1]
    secrets = [struct.unpack_from("<8Q", _SECRET, 8 * number) for number in range(_STRIPES_A_BLOCK)]
    scramble = struct.unpack_from("<8Q", _SECRET, 192 - 64)
    for number in range((size - 1) // _STRIPE):
        in_block = number % _STRIPES_A_BLOCK
        _accumulate(lanes, data, number * _STRIPE, secrets[in_block])
        if in_block == _STRIPES_A_BLOCK - 1:
            for lane, secret in enumerate(scramble):
                value = lanes[lane]
                lanes[lane] = ((value ^ value >> 47) ^ secret) * _PRIME32_1 & _MASK
    _accumulate(lanes, data, size - _STRIPE, struct.unpack_from("<8Q", _SECRET, 192 - 64 - 7))
    total = size * _PRIME_1
    for lane in range(0, 8, 2):
        keys = struct.unpack_from("<2Q", _SECRET, 11 + 8 * lane)
        total += _fold(lanes[lane] ^ keys[0], lanes[lane + 1] ^ keys[1])
    return _avalanche(total & _MASK)


def _accumulate(lanes: list[int], data: bytes, at: int, secret: tuple[int, ...]) -> None:
    values = struct.unpack_from("<8Q", data, at)
    for lane, value in enumerate(values):
        key = value ^ secret[lane]
        lanes[lane ^ 1] = (lanes[lane ^ 1] + value) & _MASK
        lanes[lane] = (lanes[lane] + (key & _MASK32) * (key >> 32)) & _MASK

"""Writer of src/kbroker/common/java/unicode_data.py from RE2/J's own tables: python -m tests.support.unicode_tables."""

import base64
import subprocess
import zlib
from pathlib import Path

from tests.support.kafka import compiled, java_command

ROOT = Path(__file__).resolve().parents[2]
SOURCE = Path(__file__).parent / "java" / "re2j" / "UnicodeTablesDump.java"
TARGET = ROOT / "src" / "kbroker" / "common" / "java" / "unicode_data.py"
WIDTH = 114
HEAD = '"""Unicode\'s tables as RE2/J 1.8 has them. Written by tests/support/unicode_tables.py; do not edit it."""\n'


def dumped() -> tuple[dict[str, list[tuple[int, int]]], list[list[int]]]:
    """Return the first and last characters of each class in order, and the letters of each orbit, smallest first."""
    command = java_command("com.google.re2j.UnicodeTablesDump", classes=compiled(SOURCE))
    printed = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120).stdout
    classes: dict[str, list[tuple[int, int]]] = {}
    orbits = []
    for line in printed.splitlines():
        kind, *words = line.split()
        if kind == "class":
            ranges: list[tuple[int, int]] = []
            for low, high in sorted(tuple(map(int, word.split("-"))) for word in words[1:]):
                if ranges and ranges[-1][1] == low - 1:
                    ranges[-1] = ranges[-1][0], high
                else:
                    ranges.append((low, high))
            classes[words[0]] = ranges
        elif kind == "orbit":
            orbits.append([int(word) for word in words])
    return classes, sorted(orbits)


def packed(numbers: list[int]) -> bytes:
    """Return numbers with seven bits a byte, the highest first; the last byte of a number is below 128."""
    found = bytearray()
    for number in numbers:
        part = [number & 127]
        while number := number >> 7:
            part.append(number & 127 | 128)
        found += bytes(reversed(part))
    return bytes(found)


def data() -> str:
    """Return the text of the module."""
    classes, orbits = dumped()
    parts = {}
    for name, ranges in classes.items():
        numbers = []
        end = 0
        for low, high in ranges:
            numbers += [low - end, high + 1 - low]
            end = high + 1
        parts[name] = packed(numbers)
    head = ",".join(f"{name}:{len(part)}" for name, part in parts.items())
    cases = []
    before = 0
    for first, *others in orbits:
        cases += [first - before, len(others), *others]
        before = first
    texts = {"CLASSES": head.encode() + b"\n" + b"".join(parts.values()), "CASES": packed(cases)}
    shown = [HEAD]
    for name, raw in texts.items():
        text = base64.b85encode(zlib.compress(raw, 9)).decode()
        rows = "\n".join(f'    "{text[at : at + WIDTH]}"' for at in range(0, len(text), WIDTH))
        shown.append(f"{name} = (\n{rows}\n)\n")
    return "\n".join(shown)


if __name__ == "__main__":
    TARGET.write_text(data(), encoding="utf-8")

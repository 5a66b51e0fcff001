"""Documented schema of the commands' output with --json."""

import json
from pathlib import Path
from typing import Any
from urllib.parse import quote

from jsonschema import Draft202012Validator

FILE = Path(__file__).resolve().parents[2] / "docs" / "reference" / "cli-output.schema.json"
SCHEMA: dict[str, Any] = json.loads(FILE.read_text(encoding="utf-8"))
LINES = ("consume", "log dump", "requests tail")  # one document a line


def commands() -> set[str]:
    """Return the names of commands that have a schema; the other definitions are shared by several commands."""
    used = json.dumps(SCHEMA)
    return {name for name in SCHEMA["$defs"] if name in LINES or f'"#/$defs/{name}"' not in used}


def check(command: str, text: str) -> list[Any]:
    """Validate the output of a command against its schema; return its documents."""
    found = [json.loads(line) for line in text.splitlines()] if command in LINES else [json.loads(text)]
    validator = Draft202012Validator({**SCHEMA, "$ref": f"#/$defs/{quote(command)}"})
    for document in found:
        problems = [f"{error.json_path}: {error.message}" for error in validator.iter_errors(document)]
        assert not problems, (command, problems)
    return found

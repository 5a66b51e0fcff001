"""An extension of Griffe: the stubs of compiled modules get the docstrings of the built modules, as Markdown."""

from __future__ import annotations

import importlib
import inspect
from typing import Any

import griffe

SECTIONS = ("Args", "Returns", "Raises", "Threads", "Source", "Measured")


class Docstrings(griffe.Extension):
    """A `.pyi` has signatures and no docstrings, a compiled module has docstrings and no signatures."""

    def on_module(self, *, mod: griffe.Module, loader: griffe.GriffeLoader, **kwargs: Any) -> None:
        if isinstance(mod.filepath, list):  # a namespace package
            return
        is_stub = mod.filepath.suffix == ".pyi"
        complete(mod, importlib.import_module(mod.path) if is_stub else None)


def complete(thing: griffe.Object, built: object) -> None:
    """Give an object of a module and its members their docstrings.

    Args:
        thing: what Griffe read.
        built: the same thing of the built module; None leaves the docstring that was read.
    """
    text = (
        thing.docstring.value if thing.docstring is not None else inspect.getdoc(built) if built is not None else None
    )
    if text:
        thing.docstring = griffe.Docstring(as_markdown(without_signature(text, thing.name)), parent=thing)
    for name, member in thing.members.items():
        if not member.is_alias and not member.is_module and not name.startswith("_"):
            found = getattr(built, name, None)
            is_value = member.is_attribute and not inspect.isdatadescriptor(found)  # its docstring is that of its type
            complete(member, None if is_value else found)
    if thing.is_class and "__new__" in thing.members and "__init__" not in thing.members:
        made = thing.members["__new__"]
        thing.set_member("__init__", griffe.Function("__init__", parameters=made.parameters, parent=thing))


def without_signature(text: str, name: str) -> str:
    """The docstring without the line `Class.name(arguments)` or `name: type` that Cython puts before it."""
    first, _, rest = text.partition("\n")
    is_signature = first.partition("(")[0].partition(":")[0].rpartition(".")[2] == name and (
        "(" in first or ": " in first
    )
    return inspect.cleandoc(rest if is_signature else text)


def as_markdown(text: str) -> str:
    """Sections as paragraphs with a bold label; their `name: meaning` lines as a list."""
    lines: list[str] = []
    in_section = False
    for line in text.splitlines():
        label, colon, rest = line.partition(":")
        name, named, meaning = line.strip().partition(": ")
        indent = len(line) - len(line.lstrip())
        if colon and label in SECTIONS:
            lines += ["", f"**{label}:**{rest}"]
            in_section = True
        elif in_section and indent == 4 and named and name.replace(", ", "").replace("_", "").isalnum():
            if not lines[-1].startswith(("- ", "  ")):
                lines.append("")
            lines.append(f"- `{name}`: {meaning}")
        elif in_section and indent:
            lines.append(("  " if indent > 4 else "") + line.strip())
        else:
            in_section = in_section and bool(indent)
            lines.append(line)
    return "\n".join(lines)

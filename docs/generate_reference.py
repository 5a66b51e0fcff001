"""Write docs/reference/*.md from the docstrings of the built package and the signatures of its stubs.

python docs/generate_reference.py [--check]      --check: write nothing, fail if a page is not up to date
"""

from __future__ import annotations

import ast
import importlib
import inspect
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
REFERENCE = ROOT / "docs" / "reference"

# page: its modules
PAGES: dict[str, list[str]] = {
    "clock": ["kbroker._core.clock"],
    "timing_wheel": ["kbroker._core.timer.timing_wheel"],
    "purgatory": ["kbroker._core.timer.purgatory"],
    "memory_pool": ["kbroker._core.requests.memory_pool"],
    "request_queue": ["kbroker._core.requests.request_queue", "kbroker.network.request_channel"],
    "selector": ["kbroker._core.network.selector", "kbroker._core.network.mute"],
    "framing": ["kbroker._core.codec.framing", "kbroker._core.codec.crc32c"],
    "socket_server": [
        "kbroker.network.socket_server",
        "kbroker.network.transport.authentication",
        "kbroker.network.processor._processor",
        "kbroker.network._acceptor",
    ],
    "sensors": [
        "kbroker._core.metrics.sensor",
        "kbroker._core.metrics.stats",
        "kbroker._core.metrics.metric",
        "kbroker._core.metrics.metric_config",
        "kbroker._core.metrics.sensor_registry",
        "kbroker._core.metrics.sensor_charge",
        "kbroker.metrics.registry",
    ],
    "records": ["kbroker.protocol.records"],
    "codec": ["kbroker.protocol.codec"],
}
# What a page shows although it is defined in a private module.
BORROWED = {
    "kbroker.network.request_channel": ["InboundRequest", "ChannelThrottle", "SuppressedResponses"],
    "kbroker.network.transport.authentication": ["TlsServer"],
    "kbroker.protocol.records": ["RecordBatch", "RecordBatchBuilder", "BinaryColumn"],
}
Definition = ast.FunctionDef | ast.ClassDef


def declarations(module: str) -> dict[str, Definition]:
    """Classes and functions of the stub, or of the source where a module has no stub."""
    parts = module.split(".")
    base = ROOT / "src" / Path(*(parts[1:] if parts[1] == "_core" else parts))
    path = next(p for p in (base.with_suffix(".pyi"), base.with_suffix(".py")) if p.exists())
    body = ast.parse(path.read_text(encoding="utf-8")).body
    return {n.name: n for n in body if isinstance(n, Definition)}


def is_public(name: str) -> bool:
    return not name.startswith("_")


def signature(node: ast.FunctionDef, name: str, *, is_method: bool) -> str:
    """``name(arguments) -> result`` without self."""
    arguments = ast.unparse(node.args)
    if is_method and node.args.args and node.args.args[0].arg in ("self", "cls"):
        arguments = arguments.partition(", ")[2]
        arguments = arguments.removeprefix("/, ").removesuffix("/").removesuffix(", ")
    result = f" -> {ast.unparse(node.returns)}" if node.returns is not None and name != "__new__" else ""
    return f"({arguments}){result}"


def text_of(thing: object, node: Definition) -> str:
    """The docstring, without the signature that Cython puts before it."""
    words = ast.get_docstring(node) or inspect.getdoc(thing) or ""
    first, _, rest = words.partition("\n")
    own_name = node.name
    if first.partition("(")[0].partition(":")[0].rpartition(".")[2] == own_name and ("(" in first or ": " in first):
        words = rest
    return inspect.cleandoc(words).strip()


def as_markdown(words: str) -> str:
    """Docstring sections are lists of `name: meaning` lines; a code block keeps them as they are written."""
    paragraphs, lines = [], words.split("\n")
    for i, line in enumerate(lines):
        label, colon, _ = line.partition(":")
        starts = colon and label in ("Args", "Returns", "Raises", "Threads", "Source", "Measured")
        if starts and i and lines[i - 1]:
            paragraphs.append("")
        paragraphs.append(f"**{label}:**{line[len(label) + 1 :]}" if starts else as_item(line))
    return "\n".join(paragraphs).replace("``", "`")


def as_item(line: str) -> str:
    """An indented line of a section: `name: meaning` is an item, deeper ones continue it."""
    indent = len(line) - len(line.lstrip())
    name, colon, meaning = line.strip().partition(": ")
    if indent == 4 and colon and name.replace(", ", "").replace("_", "").isalnum():
        return f"- `{name}`: {meaning}"
    return ("  " if indent > 4 else "") + line.strip()


def class_lines(node: ast.ClassDef, made: type) -> list[str]:
    methods = {n.name: n for n in node.body if isinstance(n, ast.FunctionDef)}
    maker = methods.get("__new__") or methods.get("__init__")
    arguments = signature(maker, "__new__", is_method=True).partition(" -> ")[0] if maker is not None else ""
    lines = [f"## class `{node.name}`", "", *code(node.name + arguments), as_markdown(text_of(made, node)), ""]
    fields = [n for n in node.body if isinstance(n, ast.AnnAssign) and isinstance(n.target, ast.Name)]
    for field in fields:
        default = f" = {ast.unparse(field.value)}" if field.value is not None else ""
        lines.append(f"- `{ast.unparse(field.target)}: {ast.unparse(field.annotation)}{default}`")
    if fields:
        lines.append("")
    for name, method in methods.items():
        if not is_public(name):
            continue
        words = as_markdown(text_of(getattr(made, name, None), method))
        decorators = {ast.unparse(d) for d in method.decorator_list}
        if "property" in decorators:
            result = ast.unparse(method.returns) if method.returns is not None else "object"
            lines += [f"### `{node.name}.{name}`: `{result}`", "", words, ""]
        else:
            shown = signature(method, name, is_method="staticmethod" not in decorators)
            lines += [f"### `{node.name}.{name}`", "", *code(name + shown), words, ""]
    return lines


def code(line: str) -> list[str]:
    return ["```python", line, "```", ""]


def page(modules: list[str]) -> str:
    lines = ["<!-- made by docs/generate_reference.py -->", ""]
    for name in modules:
        module = importlib.import_module(name)
        lines += [f"# `{name}`", "", as_markdown(inspect.cleandoc(module.__doc__ or "")), ""]
        found = {n: d for n, d in declarations(name).items() if is_public(n)}
        for borrowed in BORROWED.get(name, []):
            home = importlib.import_module(getattr(module, borrowed).__module__).__name__
            found[borrowed] = declarations(home)[borrowed]
        for thing_name, node in found.items():
            thing = getattr(module, thing_name)
            if isinstance(node, ast.ClassDef):
                lines += class_lines(node, thing)
            else:
                shown = signature(node, thing_name, is_method=False)
                lines += [f"## `{thing_name}`", "", *code(thing_name + shown), as_markdown(text_of(thing, node)), ""]
    text = "\n".join(lines).rstrip() + "\n"
    while "\n\n\n" in text:
        text = text.replace("\n\n\n", "\n\n")
    return text


def pages() -> dict[str, str]:
    """Text of every page, by file name."""
    made = {f"{name}.md": page(modules) for name, modules in PAGES.items()}
    index = ["<!-- made by docs/generate_reference.py -->", "", "# Reference", ""]
    index += [f"- [{name}]({name}.md): {', '.join(f'`{m}`' for m in modules)}" for name, modules in PAGES.items()]
    return {"README.md": "\n".join(index) + "\n", **made}


def main() -> int:
    made = pages()
    old = {p.name: p.read_text(encoding="utf-8") for p in REFERENCE.glob("*.md")}
    if "--check" in sys.argv:
        stale = sorted(n for n in made.keys() | old.keys() if made.get(n) != old.get(n))
        print(f"not up to date: {', '.join(stale)}" if stale else "up to date")
        return 1 if stale else 0
    REFERENCE.mkdir(exist_ok=True)
    for name in old.keys() - made.keys():
        (REFERENCE / name).unlink()
    for name, text in made.items():
        (REFERENCE / name).write_text(text, encoding="utf-8")
    print(f"{len(made)} pages in {REFERENCE.relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""What pages have in common: HTML with its style inside, readable in light and dark, no request to anywhere."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

LINES = 6  # colours that readers can distinguish
STYLE = """
:root { color-scheme: light dark; --bg: #ffffff; --fg: #1c2430; --soft: #5b6675; --edge: #d9dee5;
  --empty: #f1f4f7; --heat: #c2410c; --c0: #8a94a3; --c1: #1d6fd1; --c2: #d97706; --c3: #0f8a6d; --c4: #b83280;
  --c5: #6d4fc4; --c6: #4d7c0f; }
@media (prefers-color-scheme: dark) { :root { --bg: #14181e; --fg: #e6eaf0; --soft: #9aa6b6; --edge: #323a45;
  --empty: #1e242c; --heat: #fb923c; --c0: #8792a2; --c1: #5aa9ff; --c2: #f5a524; --c3: #3ecf9f; --c4: #f08cc4;
  --c5: #a78bfa;
  --c6: #a3d155; } }
* { box-sizing: border-box }
body { margin: 0 auto; max-width: 1000px; padding: 24px 20px 60px; background: var(--bg); color: var(--fg);
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", "Helvetica Neue", Arial, sans-serif }
h1 { font-size: 26px; margin: 0 0 4px } h2 { font-size: 19px; margin: 40px 0 6px }
h3 { font-size: 15px; margin: 18px 0 4px }
p { margin: 4px 0 10px } .soft, figcaption { color: var(--soft) }
.cards { display: grid; grid-template-columns: repeat(auto-fit, minmax(150px, 1fr)); gap: 10px; margin: 18px 0 }
.cards div { border: 1px solid var(--edge); border-radius: 8px; padding: 10px 12px }
.cards b { display: block; font-size: 19px; font-weight: 600; white-space: nowrap }
.cards span { color: var(--soft); font-size: 13px }
svg { width: 100%; height: auto } svg text { fill: var(--soft); font-size: 12px }
.grid { stroke: var(--edge); stroke-width: 1 } .line { fill: none; stroke-width: 1.8; stroke-linejoin: round }
.empty { fill: var(--empty) } .heat { fill: var(--heat) }
.legend { font-size: 13px; color: var(--soft) } .legend span { margin-right: 16px; display: inline-block }
.legend .dashed { background: repeating-linear-gradient(90deg, var(--c0) 0 4px, transparent 4px 7px) }
.legend i { display: inline-block; width: 14px; height: 3px; margin-right: 6px; vertical-align: middle }
.scroll { overflow-x: auto } table { border-collapse: collapse; width: 100%; font-size: 14px }
th { text-align: left; color: var(--soft); font-weight: 600; vertical-align: bottom }
th, td { padding: 5px 0 5px 10px; border-bottom: 1px solid var(--edge) }
td.n, th.n { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap }
.wide { display: block } .narrow { display: none } svg.narrow text { font-size: 13px }
.dot { opacity: .35 } .cross { stroke-width: 1.8 }
th:first-child, td:first-child { padding-left: 0; white-space: nowrap }
@media (max-width: 640px) { .wide { display: none } .narrow { display: block } body { padding: 16px 14px 40px }
  h1 { font-size: 21px } .cards { grid-template-columns: 1fr 1fr } }
.note { border-left: 3px solid var(--c1); padding: 6px 12px; background: var(--empty); border-radius: 0 6px 6px 0 }
""" + "".join(
    f".c{i} {{ stroke: var(--c{i}) }} .f{i}, .b{i} {{ fill: var(--c{i}); background: var(--c{i}) }}\n"
    for i in range(LINES + 1)
)  # fmt: skip


def document(title: str, body: Iterable[str]) -> str:
    """A whole page. Args: `title`: as text; `body`: pieces of HTML."""
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{STYLE}</style></head><body>\n" + "\n".join(body) + "\n</body></html>\n"
    )


def cards(values: Iterable[tuple[str, str]]) -> str:
    """Figures in boxes, each with what it is."""
    shown = (f"<div><b>{escape(value)}</b><span>{escape(what)}</span></div>" for value, what in values)
    return f'<div class="cards">{"".join(shown)}</div>'


def legend(names: Sequence[str], first: int = 0) -> str:
    """Names by colour. Args: `first`: the number of the first one's."""
    shown = (f'<span><i class="b{i}"></i>{escape(name)}</span>' for i, name in enumerate(names, first))
    return f'<p class="legend">{"".join(shown)}</p>'


def table(header: Sequence[str], rows: Sequence[Sequence[str]], numbers: int) -> str:
    """A table; columns from `numbers` on stand right."""

    def line(tag: str, cells: Sequence[str]) -> str:
        marked = (f"<{tag}{' class=n' if i >= numbers else ''}>{escape(c)}</{tag}>" for i, c in enumerate(cells))
        return f"<tr>{''.join(marked)}</tr>"

    return f'<div class="scroll"><table>{line("th", header)}{"".join(line("td", row) for row in rows)}</table></div>'

"""Pages from templates: HTML with its style inside, readable in light and dark. Needs Jinja2, of `kbroker[spark]`."""

from __future__ import annotations

from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

LINES = 6  # number of colours that readers can distinguish
FOLDER = Path(__file__).with_name("templates")


def render_page(template: str, *, folder: Path = FOLDER, **values: object) -> str:
    """Return a whole page; values are text, not markup.

    Args:
        template: name of a file in `folder`, which may extend `page.html` and import from `parts.html`.
    """
    environment = Environment(
        loader=FileSystemLoader([folder, FOLDER]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template(template).render(LINES=LINES, **values) + "\n"

"""Pages from templates. Values are escaped, never markup; names of clients are made printable."""

from __future__ import annotations

import math
from datetime import datetime, timezone
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from kbroker.common.printable import printable
from kbroker.common.quota_limits import limit_text
from kbroker.common.shown_names import entity_name, shown_name
from kbroker.common.units import counted, rounded_bytes, rounded_duration
from kbroker.log.checkpoints import uuid_to_text

FOLDER = Path(__file__).with_name("templates")
MACROS = ("parts.html", "explanation.html")
_LATEST_S = 253_402_300_799  # the end of the year 9999


class Renderer:
    """Renderer of the templates. Threads: any."""

    def __init__(self) -> None:
        self._environment = Environment(
            loader=FileSystemLoader(FOLDER),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
            auto_reload=False,
            cache_size=64,
        )
        self._environment.filters.update(
            name=shown_name,
            printable=printable,
            entity=entity_name,
            size=_size,
            count=_count,
            counted=counted,
            topic_id=uuid_to_text,
            number=_number,
            ms=milliseconds,
            time=_time,
            exact_time=exact_time,
        )
        for file in MACROS:  # a block rendered alone lacks the imports of its template
            macros = vars(self._environment.get_template(file).module).items()
            self._environment.globals.update({name: macro for name, macro in macros if not name.startswith("_")})

    def page(self, template: str, values: dict[str, object]) -> bytes:
        """Return a whole page."""
        return self._environment.get_template(template).render(values).encode("utf-8", "replace")

    def live_part(self, template: str, values: dict[str, object]) -> bytes:
        """Return the block ``live`` of a page alone; the whole page if it has none."""
        found = self._environment.get_template(template)
        live = found.blocks.get("live")
        if live is None:
            return self.page(template, values)
        return "".join(live(found.new_context(values))).encode("utf-8", "replace")


def _size(number: float | None) -> str:
    return "-" if number is None else rounded_bytes(number)


def _count(number: float | None) -> str:
    return "-" if number is None else f"{number:,.0f}"


def _number(value: float | None) -> str:
    """Return the number in a few digits: 0.25, 3.7, 1,234."""
    if value is None or math.isnan(value):
        return "-"
    if math.isinf(value):
        return "no limit"
    return f"{value:,.0f}" if abs(value) >= 100 or value == int(value) else f"{value:,.2f}".rstrip("0").rstrip(".")


def measured(key: str, value: float | None) -> str:
    """Return a rate that a quota counts, rounded, with the unit of the quota's key."""
    if value is None or not math.isfinite(value):
        return "-"
    if key.endswith("byte_rate"):
        return f"{rounded_bytes(value)}/s"
    text = f"{value:,.1f}" if abs(value) >= 100 else f"{value:.3g}"
    return f"{text} %" if key.endswith("percentage") else f"{text}/s"


def judged(key: str, observed: float, limit: float) -> tuple[str, str]:
    """Return the observed value of a decision and its limit; for controller mutations, the tokens that are left."""
    is_bucket = key == "controller_mutation_rate"
    return f"{observed:.6g} tokens" if is_bucket else measured(key, observed), limit_text(key, limit)


def decided(refused: bool, delay_ms: int) -> str:
    """Return the actual or, for a shadow, hypothetical effect of a decision. Args: ``delay_ms``: as served."""
    if refused:
        return "refused"
    return milliseconds(delay_ms) if delay_ms > 0 else "within a longer delay"


def milliseconds(ms: float | None) -> str:
    """Return a time with its unit: 0.25 ms, 12 ms, 3.4 s, 5 min 6 s, 2 h 5 min, 3 d 4 h."""
    return "-" if ms is None or math.isnan(ms) else rounded_duration(ms)


def _moment(ms: float) -> datetime | None:
    seconds = ms / 1000
    return datetime.fromtimestamp(seconds, timezone.utc) if 0 <= seconds <= _LATEST_S else None


def _time(ms: float | None, form: str = "%Y-%m-%d %H:%M:%S") -> str:
    """Return a time since 1970 in UTC. Args: ``form``: a format of strftime."""
    if ms is None or ms < 0:
        return "no time"
    moment = _moment(ms)
    return f"{ms:,.0f} ms" if moment is None else moment.strftime(form)


def exact_time(ms: int) -> str:
    """Return a time since 1970 in UTC with milliseconds."""
    return f"{_time(ms)}.{ms % 1000:03d}" if ms >= 0 and _moment(ms) is not None else _time(ms)

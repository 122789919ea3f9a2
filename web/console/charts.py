"""Lines over time, drawn as SVG within a page: no script, no style of its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from markupsafe import Markup

from semel.protocol.wording import moment, size
from semel.web.console.safe_text import safe_text

_WIDTH: Final = 600
_HEIGHT: Final = 120
_LEFT: Final = 4
_TOP: Final = 20
_BOTTOM: Final = 16


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a plot. points: (milliseconds since 1970, value), oldest first."""

    name: str
    points: Sequence[tuple[int, float]]


def number(value: float) -> str:
    """Return a number for people.

    >>> number(1234567), number(0.25)
    ('1,234,567', '0.2')
    """
    return f"{value:,.0f}" if value >= 10 or value == round(value) else f"{value:,.1f}"


def rate(bytes_per_s: float) -> str:
    """Return bytes per second for people.

    >>> rate(1536)
    '1.5 KiB/s'
    """
    return f"{size(round(bytes_per_s))}/s"


def plot(title: str, lines: Sequence[Line], shown: Callable[[float], str] = number) -> Markup:
    """Return an SVG image of lines that share both axes, and what they were last beside their names.

    >>> "the first samples" in plot("Lag", [Line("lag", [])])
    True
    """
    title = safe_text(title)
    drawn = [line for line in lines if len(line.points) > 1]
    legend = Markup("").join(
        Markup('<li class="line-{}">{} <b>{}</b></li>').format(
            place, line.name, shown(line.points[-1][1]) if line.points else "-"
        )
        for place, line in enumerate(lines)
    )
    if not drawn:
        body = Markup('<p class="empty">The plot begins with the first samples: wait half a minute.</p>')
    else:
        body = _image(title, drawn, lines, shown)
    return Markup('<figure class="plot"><figcaption>{}</figcaption><ul class="legend">{}</ul>{}</figure>').format(
        title, legend, body
    )


def _image(title: str, drawn: Sequence[Line], lines: Sequence[Line], shown: Callable[[float], str]) -> Markup:
    first = min(line.points[0][0] for line in drawn)
    last = max(line.points[-1][0] for line in drawn)
    top = max(max(value for _, value in line.points) for line in drawn) or 1.0
    span = max(1, last - first)
    floor = _HEIGHT - _BOTTOM

    def place(time_ms: int, value: float) -> str:
        x = _LEFT + (time_ms - first) / span * (_WIDTH - 2 * _LEFT)
        return f"{x:.1f},{floor - value / top * (floor - _TOP):.1f}"

    paths = Markup("").join(
        _PATH.format(number, " ".join(place(*point) for point in line.points))
        for number, line in enumerate(lines)
        if line in drawn
    )
    told = f"{title}: {', '.join(f'{line.name} {shown(line.points[-1][1])}' for line in drawn)}"
    return _IMAGE.format(
        told=told,
        left=_LEFT,
        right=_WIDTH - _LEFT,
        width=_WIDTH,
        height=_HEIGHT,
        top=_TOP,
        floor=floor,
        highest=shown(top),
        first=moment(first)[11:16],
        last=moment(last)[11:16],
        above=_TOP - 5,
        below=_HEIGHT - 3,
        paths=paths,
    )


_PATH: Final = Markup('<polyline class="line-{}" points="{}"/>')
_IMAGE: Final = Markup(
    '<svg viewBox="0 0 {width} {height}" role="img" aria-label="{told}">'
    '<line class="axis" x1="{left}" y1="{top}" x2="{right}" y2="{top}"/>'
    '<line class="axis" x1="{left}" y1="{floor}" x2="{right}" y2="{floor}"/>'
    '<text x="{left}" y="{above}">{highest}</text>'
    '<text x="{left}" y="{below}">{first}</text>'
    '<text x="{right}" y="{below}" text-anchor="end">{last} UTC</text>'
    "{paths}</svg>"
)

"""Draws Mermaid's state diagrams as SVG while the pages are built: without a browser's script, and without a network.

The states stand on an ellipse, so that no arrow goes through a state that it has nothing to do with.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from html import escape
from typing import Any, Final

from docutils import nodes
from sphinx.util.docutils import SphinxDirective

MOVE: Final = re.compile(r"\s*(\[\*\]|\w+) --> (\[\*\]|\w+)(?:: (.+))?")
OUTSIDE: Final = "[*]"
BOX_HEIGHT, LETTER_WIDTH, MARGIN, BEND = 34.0, 8.4, 62.0, 0.13


@dataclass(frozen=True)
class Move:
    """From a state to a state; `label` says when, where not always."""

    before: str
    after: str
    label: str = ""


@dataclass(frozen=True)
class Point:
    x: float
    y: float

    def toward(self, other: Point, share: float) -> Point:
        return Point(self.x + (other.x - self.x) * share, self.y + (other.y - self.y) * share)


@dataclass(frozen=True)
class Box:
    """A state's place, by its middle."""

    middle: Point
    width: float

    def edge_toward(self, other: Point) -> Point:
        """Return where a line from the middle to `other` leaves the box."""
        dx, dy = other.x - self.middle.x, other.y - self.middle.y
        across = (self.width / 2 + 3) / abs(dx) if dx else math.inf
        down = (BOX_HEIGHT / 2 + 3) / abs(dy) if dy else math.inf
        return self.middle.toward(other, min(across, down))


def moves_of(diagram: str) -> list[Move]:
    """Return the moves of a Mermaid state diagram. Raises ValueError for a line that is none."""
    title, *lines = (line for line in diagram.splitlines() if line.strip())
    if not title.startswith("stateDiagram"):
        raise ValueError("no state diagram")
    moves = []
    for line in lines:
        found = MOVE.fullmatch(line)
        if found is None:
            raise ValueError(f"no move: {line!r}")
        moves.append(Move(found[1], found[2], found[3] or ""))
    return moves


def svg_of(moves: list[Move]) -> str:
    """Return the picture. Each arrow has its move in `data-move`."""
    states = list(dict.fromkeys(state for move in moves for state in (move.before, move.after) if state != OUTSIDE))
    radius_x, radius_y = 105 + 26 * len(states), 60 + 20 * len(states)
    width, height = 2 * (radius_x + 125), 2 * (radius_y + MARGIN)
    centre = Point(width / 2, height / 2)
    boxes = {}
    for number, state in enumerate(states):
        angle = 2 * math.pi * number / len(states) - math.pi
        middle = Point(centre.x + radius_x * math.cos(angle), centre.y + radius_y * math.sin(angle))
        boxes[state] = Box(middle, 22 + LETTER_WIDTH * len(state))
    told = escape("; ".join(f"{move.before} to {move.after}" for move in moves))
    parts = [
        f'<svg class="states" role="img" aria-label="{told}" viewBox="0 0 {width:.0f} {height:.0f}" '
        f'style="max-width: {width:.0f}px; width: 100%" font-family="monospace" font-size="13" fill="currentColor">',
        '<defs><marker id="arrow" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="8" markerHeight="8" '
        'orient="auto-start-reverse"><path d="M 0 1 L 10 5 L 0 9 z"/></marker></defs>',
    ]
    parts += [_arrow(move, boxes, centre) for move in moves]
    parts += [_box(state, box) for state, box in boxes.items()]
    return "\n".join([*parts, "</svg>"])


def _box(state: str, box: Box) -> str:
    left, top = box.middle.x - box.width / 2, box.middle.y - BOX_HEIGHT / 2
    return (
        f'<rect x="{left:.1f}" y="{top:.1f}" width="{box.width:.1f}" height="{BOX_HEIGHT:.0f}" rx="8" '
        'fill="var(--color-background-secondary, #eee)" stroke="currentColor" stroke-width="1.4"/>'
        f'<text x="{box.middle.x:.1f}" y="{box.middle.y + 4.5:.1f}" text-anchor="middle">{escape(state)}</text>'
    )


def _arrow(move: Move, boxes: dict[str, Box], centre: Point) -> str:
    name = escape(f"{move.before} --> {move.after}" + (f": {move.label}" if move.label else ""))
    look = f'data-move="{name}" fill="none" stroke="currentColor" stroke-width="1.2"'
    if OUTSIDE in (move.before, move.after):
        return _outside(move, boxes, centre, look)
    box = boxes[move.before]
    if move.before == move.after:
        out = centre.toward(box.middle, 1 + (BOX_HEIGHT + 26) / math.dist(_pair(centre), _pair(box.middle)))
        left, right = _sideways(box.middle, out, 0.45), _sideways(box.middle, out, -0.45)
        start, end = box.edge_toward(left), box.edge_toward(right)
        path = f"M {_at(start)} C {_at(left)} {_at(right)} {_at(end)}"
        return f'<path d="{path}" marker-end="url(#arrow)" {look}/>'
    other = boxes[move.after]
    control = _sideways(box.middle, box.middle.toward(other.middle, 0.5), BEND * 2)
    start, end = box.edge_toward(control), other.edge_toward(control)
    if not move.label:
        return f'<path d="M {_at(start)} Q {_at(control)} {_at(end)}" marker-end="url(#arrow)" {look}/>'
    place = start.toward(control, 0.5).toward(control.toward(end, 0.5), 0.5)
    return (
        f'<path d="M {_at(start)} Q {_at(control)} {_at(end)}" stroke-dasharray="5 4" marker-end="url(#arrow)" {look}/>'
        f'<text x="{place.x:.1f}" y="{place.y:.1f}" font-size="11" text-anchor="middle">{escape(move.label)}</text>'
    )


def _outside(move: Move, boxes: dict[str, Box], centre: Point, look: str) -> str:
    box = boxes[move.after if move.before == OUTSIDE else move.before]
    dot = Point(box.middle.x - math.copysign(box.width / 2 + 34, centre.x - box.middle.x), box.middle.y)
    edge = box.edge_toward(dot)
    if move.before == OUTSIDE:
        line = f'<path d="M {_at(dot)} L {_at(edge)}" marker-end="url(#arrow)" {look}/>'
        return f'{line}<circle cx="{dot.x:.1f}" cy="{dot.y:.1f}" r="6"/>'
    near = dot.toward(edge, 9 / math.dist(_pair(dot), _pair(edge)))
    line = f'<path d="M {_at(edge)} L {_at(near)}" marker-end="url(#arrow)" {look}/>'
    ring = f'<circle cx="{dot.x:.1f}" cy="{dot.y:.1f}" r="8" fill="none" stroke="currentColor"/>'
    return f'{line}{ring}<circle cx="{dot.x:.1f}" cy="{dot.y:.1f}" r="4.5"/>'


def _sideways(start: Point, end: Point, share: float) -> Point:
    """Return `end`, moved to the side of the way from `start` by a share of the way's length."""
    return Point(end.x - (end.y - start.y) * share, end.y + (end.x - start.x) * share)


def _pair(point: Point) -> tuple[float, float]:
    return point.x, point.y


def _at(point: Point) -> str:
    return f"{point.x:.1f} {point.y:.1f}"


class Mermaid(SphinxDirective):
    """A ```mermaid block: a state diagram becomes a picture, any other kind stays as its text."""

    has_content = True

    def run(self) -> list[nodes.Node]:
        text = "\n".join(self.content)
        try:
            picture = svg_of(moves_of(text))
        except ValueError as error:
            if text.startswith("stateDiagram"):
                raise self.error(str(error)) from None
            return [nodes.literal_block(text, text)]
        return [nodes.raw("", f'<div class="state-diagram">{picture}</div>', format="html")]


def setup(app: Any) -> dict[str, Any]:
    app.add_directive("mermaid", Mermaid)
    return {"parallel_read_safe": True}

"""
Charts as SVG text: bars, one stacked bar, a timeline.

Widths are percentages, so a chart fits any screen and its letters keep their size. Colours are classes, given by the
page for light and dark. What is drawn is also said, in `aria-label`. All text is escaped here.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

ROW, THICK, AXIS = 26, 16, 24  # pixels: from row to row, of a bar, of the axis below
LABELS, PLOT = 18, 60  # per cent of the width: names at the left, bars in the middle, the rest for what is said
THINNEST = 0.3  # per cent: the smallest share of a large whole stays visible


@dataclass(frozen=True)
class Bar:
    """A row of a chart: its name, the length of its bar, what is said beside it, where it begins, how it looks."""

    label: str
    length: float
    text: str
    start: float = 0
    colour: str = "code"


def bars(rows: Sequence[Bar], *, name: str, unit: str = "", column: bool = False) -> str:
    """Draw a bar a row over one axis; without a unit its values are whole. Texts stand at their bars or in a column."""
    top = max((row.start + row.length for row in rows), default=0) or 1
    scale, bottom = PLOT / top, ROW * len(rows)
    values = ticks(top, least=0 if unit else 1)
    grid = (_tick(LABELS + value * scale, bottom, f"{value:,.10g}{unit}") for value in values)
    drawn = (_row(row, number * ROW, scale, column=column) for number, row in enumerate(rows))
    return _svg(name, rows, bottom + AXIS, [*grid, *drawn])


def stack(parts: Sequence[Bar], *, name: str) -> str:
    """Draw the parts of a whole end to end in one bar."""
    scale = 100 / (sum(part.length for part in parts) or 1)
    drawn, start = [], 0.0
    for part in parts:
        drawn.append(f"<g>{_tooltip(part)}{_rect(start, 0, part.length * scale, 36, part.colour)}</g>")
        start += part.length * scale
    return _svg(name, parts, 36, drawn)


def ticks(top: float, *, least: float = 0, most: int = 6) -> list[float]:
    """Choose round values from 0 to at most `top`: steps of 1, 2 or 5 times a power of ten, and at least `least`."""
    power = 10.0 ** math.floor(math.log10(top / most))
    step = max(least, power * next(factor for factor in (1, 2, 5, 10) if factor * power * most >= top))
    return [number * step for number in range(int(top / step) + 1)]


def shorten(text: str, most: int) -> str:
    """Leave out the middle of a long text, for the ends tell more."""
    half = (most - 1) // 2
    return text if len(text) <= most else f"{text[:half]}…{text[-half:]}"


def _row(row: Bar, top: int, scale: float, *, column: bool) -> str:
    start, width = LABELS + row.start * scale, row.length * scale
    middle, edge = top + ROW / 2, top + (ROW - THICK) / 2
    label = _text(LABELS, middle, shorten(row.label, 23), "label", -10)
    beside = _text(LABELS + PLOT if column else start + width, middle, row.text, "value", 8)
    return f"<g>{_tooltip(row)}{label}{_rect(start, edge, width, THICK, row.colour)}{beside}</g>"


def _tick(x: float, bottom: int, text: str) -> str:
    line = f'<line class="grid" x1="{x:.2f}%" x2="{x:.2f}%" y1="0" y2="{bottom}"/>'
    return line + _text(x, bottom + AXIS * 0.6, text, "tick", 0)


def _rect(x: float, y: float, width: float, height: float, colour: str) -> str:
    width = max(width, THINNEST)
    return f'<rect class="{colour}" x="{x:.2f}%" y="{y:g}" width="{width:.2f}%" height="{height:g}" rx="2"/>'


def _text(x: float, y: float, text: str, kind: str, shift: int) -> str:
    return f'<text class="{kind}" x="{x:.2f}%" y="{y:g}" dx="{shift}" dy=".35em">{escape(text)}</text>'


def _tooltip(row: Bar) -> str:
    return f"<title>{escape(_said(row))}</title>"


def _said(row: Bar) -> str:
    return f"{row.label}: {row.text}"


def _svg(name: str, rows: Iterable[Bar], height: float, drawn: Iterable[str]) -> str:
    said = escape(f"{name}. {'; '.join(map(_said, rows))}")
    return f'<svg role="img" aria-label="{said}" width="100%" height="{height:g}">{"".join(drawn)}</svg>'

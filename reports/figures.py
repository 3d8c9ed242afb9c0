"""The parts of a figure as the templates take them: numbers already in words, drawings already made."""

from __future__ import annotations

from attrs import frozen
from markupsafe import Markup

from k3gate.reports.evidence import Link


@frozen
class Cell:
    """A cell of the matrix. `ink` 6 to 42: the share of colour; `word` stands where there is no number."""

    word: str
    link: Link | None
    ink: int | None
    local: bool


@frozen
class Matrix:
    """A part of the NUMA matrix: all CPU nodes by some memory nodes."""

    caption: str
    groups: tuple[tuple[str, int], ...]
    columns: tuple[str, ...]
    rows: tuple[tuple[str, str, tuple[Cell, ...]], ...]
    big: bool
    style: str = "bw"
    corner: str = "Cores of"


@frozen
class BarRow:
    """A row with a drawing and its figures; `figures` are the cells after the drawing."""

    title: str
    sub: str
    chart: Markup
    figures: tuple[str, ...]
    link: Link | None
    state: str = ""


@frozen
class Figure:
    """A numbered figure: matrices, or a plot and a table of bars, either of which may be lacking."""

    anchor: str
    number: int
    title: str
    subtitle: str
    source: str
    links: tuple[Link, ...] = ()
    matrices: tuple[Matrix, ...] = ()
    head: tuple[str, ...] = ()
    plot: Markup | None = None
    axis: Markup | None = None
    bars: tuple[BarRow, ...] = ()
    facts: tuple[tuple[str, str], ...] = ()


@frozen
class Absent:
    """A figure that could not be drawn, and why."""

    title: str
    state: str
    reason: str
    link: Link | None

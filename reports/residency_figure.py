"""The figure about residency: memory that was allocated, touched and read back."""

from __future__ import annotations

from k3gate import units
from k3gate.metrics import RESIDENCY_BYTES, RESIDENCY_RATE
from k3gate.records import RunRecord
from k3gate.reports import charts, words
from k3gate.reports.evidence import Index, Link
from k3gate.reports.figures import BarRow, Figure
from k3gate.reports.readings import proof_line, residency_title
from k3gate.units import NBSP


def residency(record: RunRecord, index: Index, number: int) -> Figure | None:
    """What was held beside what is wanted and what there is; None where nothing was held."""
    row = next((r for r in index.samples if r.metric.name == RESIDENCY_BYTES.name), None)
    if row is None or row.metric.median is None:
        return None
    metric, labels = row.metric, row.metric.labels
    wanted = labels.get("wanted_bytes")
    image = labels.get("memory") == "image"
    inventory = record.inventory
    held = int(metric.median or 0)
    target = float(wanted) if isinstance(wanted, int | float) else 0.0
    figures: list[tuple[str, float | None, str, str]] = []
    if target:
        figures.append(("Wanted by the target", target, "f-grey", "–"))
    figures.append(
        (
            "Held and verified" if image else "Held and verified, a small pool",
            float(held),
            "f-data",
            row.number,
        )
    )
    for name, amount in (
        ("Usable memory of the machine", inventory.memory.total_bytes),
        ("Available at the start", inventory.memory.available_bytes),
        ("May be used by this process", inventory.limits.usable_memory_bytes),
    ):
        if amount is not None:
            figures.append((name, float(amount), "f-data2", "–"))
    top = max((amount for _, amount, _, _ in figures if amount), default=1.0)
    place = charts.scale(0, top or 1.0, end=92)
    bars = [
        BarRow(
            title=name,
            sub="",
            chart=charts.cell([charts.band(0, place(amount or 0), "25%", "50%", style)]),
            figures=(
                units.exact_bytes(int(amount or 0), NBSP),
                units.gib(amount, NBSP),
                words.share((amount or 0) / target) if target else "–",
            ),
            link=row.link if sample != "–" else Link("Machine", "#machine"),
            state=words.STATES[metric.state] if sample != "–" else "–",
        )
        for name, amount, style, sample in figures
    ]
    touch = next((r for r in index.samples if r.metric.name == RESIDENCY_RATE.name), None)
    touched = (
        f" First touch ran at {words.value(touch.metric.median, 'B/s')}."
        if touch and touch.metric.median
        else ""
    )
    return Figure(
        anchor="fig-residency",
        number=number,
        title=residency_title(wanted, held, image, inventory.limits.usable_memory_bytes),
        subtitle="Memory that was allocated, touched and read back with the right pattern, from 0",
        source=f"Nodes {labels.get('nodes') or 'not named'}.{touched} {proof_line([row])}",
        links=tuple(r.link for r in (row, touch) if r is not None),
        head=("Memory", "Size", "GB", "GiB", "Of wanted", "State"),
        bars=tuple(bars),
    )

"""What storage says of the load time where no runtime was driven, and of a place that nobody named. Pure."""

from __future__ import annotations

from k3gate import units
from k3gate.analysis import loading
from k3gate.gate.targets import Target
from k3gate.model import residency
from k3gate.records import RunRecord


def weight_bytes(target: Target) -> int:
    """What a load of the target's model brings from storage."""
    return residency.weight_bytes(target.trunk, target.vision)


def instead(record: RunRecord, target: Target) -> str | None:
    """A sentence on the load time, marked as computed from storage; None where no direct read can be used."""
    found = loading.loading(record, weight_bytes(target))
    if found is None:
        return None
    told = (
        f"Computed from storage, not as served: {units.exact_bytes(found.bytes)} from {found.path} take "
        f"{units.duration(found.floor.seconds)} at least, at the {units.quantity(found.floor.rate, 'B/s')} of the "
        "drives"
    )
    loader = found.stage("safetensors")
    if loader is not None:
        how = f"as a loader of safetensors reads by one thread, bound by {found.bound}"
        told += f"; {units.duration(loader.seconds)} {how}"
    return f"{told}.{_not_named(found)}"


def unnamed(record: RunRecord, target: Target) -> str | None:
    """Of the place that stood in where the user named none; None where one was named, or nothing was read."""
    found = loading.loading(record, weight_bytes(target))
    if found is None or found.asked:
        return None
    best = next(stage for stage in found.stages if stage.key == "drives")
    return f"Measured was {found.path}, at {units.quantity(best.rate, 'B/s')}.{_not_named(found)}"


def _not_named(found: loading.Loading) -> str:
    if found.asked:
        return ""
    return " That is where k3gate's own store lies: name the place of the weights with --storage."

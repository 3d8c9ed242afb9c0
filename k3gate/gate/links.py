"""Whether the PCIe links of GPUs and drives do their best under load, from the inventory and what probes saw.

A probe hands over what a link did while its device was busy as metrics named `pcie.link.rate`, whose labels are
`device` (the address), `gt_per_s` and `width`; this module needs nothing else of it. A link that was seen idle only
decides nothing, since links slow down while nothing is sent.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from attrs import frozen

from k3gate import links, metrics, units
from k3gate.gate import hardware
from k3gate.gate.judgement import Judgement, unproven
from k3gate.gate.targets import Target
from k3gate.host.link_findings import place
from k3gate.links import LinkState, LinkVerdict
from k3gate.probing.outcomes import evidence as believed
from k3gate.records import Inventory, Metric, PcieLink, RunRecord, State, Verdict

_SHOWN = 4
_ROWS = ("inventory:gpus", "inventory:storage.drives", "inventory:pci")
_UNDER_LOAD = (
    "Run `k3gate run --probe pcie`, and for drives `k3gate run --storage PATH`: links are read under load."
)


@frozen
class Judged:
    """A GPU or drive, its link, and what is known of it under load."""

    name: str
    link: PcieLink | None
    verdict: LinkVerdict


def pcie_links(record: RunRecord, target: Target) -> Judgement:
    """A link below its best under load fails, as do a lost GPU, errors of links under load, and no GPU where the target
    puts the trunk on GPUs; a link that was not seen under load leaves it unproven."""
    inventory = record.inventory
    lost = _lost(inventory)
    if lost is not None:
        return lost
    if target.trunk == "gpu" and inventory.gpus == () and inventory.pci is not None:
        return Judgement(
            Verdict.FAIL,
            "The target puts the trunk on GPUs, and the machine shows none.",
            observed="no GPU",
            evidence=("inventory:gpus",),
            remedy="Fit the GPUs that were ordered, or choose a target that keeps the trunk in memory.",
        )
    doubt = hardware.virtual(inventory) or _unknown(inventory)
    if doubt is not None:
        return unproven(f"Links are not evaluated: {doubt}.", _ROWS)
    if inventory.pci is None:
        why = hardware.because(inventory, "pci") or "the run does not hold them"
        return unproven(
            f"The PCI devices were not seen ({why}), so links are not evaluated.", ("inventory:pci",)
        )
    errors = _errors(record)
    if errors is not None:
        return errors
    return _judge(inventory, tuple(judged(record)))


def judged(record: RunRecord) -> Iterator[Judged]:
    """Every GPU and NVMe drive with a link of its own, and what the run says of it. The report draws from it too."""
    seen = under_load(record)
    inventory = record.inventory
    for gpu in inventory.gpus or ():
        if gpu.state is State.OK and gpu.shared_memory:
            continue
        name = f"GPU {gpu.address or gpu.name or 'without a name'}"
        readings = seen.get(gpu.address or "", ())
        found = links.judge(gpu.link, readings)
        if gpu.state is not State.OK and found.word == links.IDLE:
            found = LinkVerdict(links.UNKNOWN, gpu.reason or "it cannot be asked")
        yield Judged(name, gpu.link, found)
    for drive in inventory.storage.drives if inventory.storage else ():
        if drive.kind == "nvme" and (drive.transport or "pcie") == "pcie":
            address = drive.link.address if drive.link else ""
            yield Judged(f"drive {drive.name}", drive.link, links.judge(drive.link, seen.get(address, ())))


def under_load(record: RunRecord) -> dict[str, tuple[LinkState, ...]]:
    """What links did under load, by address. Metrics that failed are none."""
    found: dict[str, list[LinkState]] = {}
    for metric in _rates(record):
        device, rate, width = (metric.labels.get(key) for key in ("device", "gt_per_s", "width"))
        if isinstance(device, str) and isinstance(rate, int | float) and isinstance(width, int):
            found.setdefault(device, []).append(LinkState(device, float(rate), width))
    return {device: tuple(states) for device, states in found.items()}


def _rates(record: RunRecord) -> Iterator[Metric]:
    for outcome in record.outcomes:
        for metric in believed(outcome):
            if metric.name == metrics.LINK_RATE.name and metric.state in (State.OK, State.UNSTABLE):
                yield metric


def _judge(inventory: Inventory, found: Sequence[Judged]) -> Judgement:
    below = [one for one in found if one.verdict.word == links.BELOW]
    if below:
        named = "; ".join(_told(inventory, one) for one in below[:_SHOWN])
        return Judgement(
            Verdict.FAIL,
            f"{units.count(len(below), 'link')} below the best: {named}.",
            observed=f"{len(below)} of {len(found)} below",
            evidence=_ROWS,
        )
    rest = [one for one in found if one.verdict.word != links.BEST]
    if rest:
        narrow = [one for one in rest if links.narrow(one.link)]
        first = "; ".join(f"{one.name}: {one.verdict.reason}" for one in (narrow or rest)[:_SHOWN])
        more = f"; and {len(rest) - _SHOWN} more" if len(narrow or rest) > _SHOWN else ""
        lanes = f" {len(narrow)} of them with fewer lanes than both ends have." if narrow else ""
        return unproven(
            f"{units.count(len(rest), 'link')} of {len(found)} not evaluated under load: {first}{more}.{lanes}",
            _ROWS,
            observed=f"{len(found) - len(rest)} of {len(found)} seen under load",
            remedy=_UNDER_LOAD,
        )
    if not found:
        return Judgement(
            Verdict.PASS,
            "All PCI devices were read, and there is neither a GPU nor an NVMe drive whose link could be slow.",
            observed="no such link",
            evidence=("inventory:pci",),
        )
    return Judgement(
        Verdict.PASS,
        f"{units.count(len(found), 'link')} of GPUs and drives did the best of both ends under load.",
        observed=f"{len(found)} of {len(found)}",
        evidence=_ROWS,
    )


def _told(inventory: Inventory, one: Judged) -> str:
    link = one.link
    assert link is not None
    rate = one.verdict.bytes_per_s
    passes, best = units.quantity(rate, "B/s"), units.quantity(link.best_bytes_per_s, "B/s")
    possible = f", so that at most {passes} of {best} pass each way" if rate else ""
    where = place(inventory, link.address)
    return f"{one.name}: {one.verdict.reason}{possible}{f' ({where})' if where else ''}"


def _lost(inventory: Inventory) -> Judgement | None:
    """A GPU that is on PCI and not in its driver's list any more fails; in a guest too."""
    gpus = inventory.gpus or ()
    lost = [one for one in gpus if one.state is not State.OK and (one.reason or "").startswith("lost")]
    if not lost:
        return None
    return Judgement(
        Verdict.FAIL,
        f"{len(gpus)} GPUs are on PCI and {len(gpus) - len(lost)} answer; lost: "
        f"{units.listed(one.address or 'one without an address' for one in lost[:_SHOWN])}.",
        observed=f"{len(gpus) - len(lost)} of {len(gpus)} answer",
        evidence=("inventory:gpus",),
        remedy="Look for Xid messages in the kernel's log, reseat the card and its power, and run again.",
    )


def _unknown(inventory: Inventory) -> str | None:
    found = hardware.unknown(inventory)
    return found.reason if found is not None else None


def _errors(record: RunRecord) -> Judgement | None:
    """Errors that links of GPUs and drives counted under load: each packet was sent again, or lost."""
    watched = {one.address for one in record.inventory.pci or () if one.kind in ("gpu", "nvme")}
    watched |= {
        address for one in record.inventory.pci or () if one.address in watched for address in one.above
    }
    seconds = sum(phase.end_s - phase.start_s for phase in record.phases)
    bad = []
    for metric in _counted(record):
        words = str(metric.labels.get("counter") or "").split()
        number = sum(sample.value for sample in metric.samples)
        if len(words) == 3 and words[0] == "aer" and words[1] in watched and number > 0:
            rate = f", {units.significant(number / seconds)} a second" if seconds > 0 else ""
            bad.append(f"{words[1]}: {number:,.0f} {words[2]}{rate}")
    if not bad:
        return None
    return Judgement(
        Verdict.FAIL,
        f"Links of GPUs or drives counted errors under load: {'; '.join(bad[:_SHOWN])}.",
        observed=f"{len(bad)} with errors",
        evidence=("machine/errors",),
        remedy="Reseat the card, replace riser or cable, and run again.",
    )


def _counted(record: RunRecord) -> Iterable[Metric]:
    for outcome in record.outcomes:
        if (outcome.probe, outcome.case) == ("machine", "errors"):
            for metric in outcome.metrics:
                if metric.name in (metrics.ERRORS_CORRECTED.name, metrics.ERRORS_UNCORRECTED.name):
                    yield metric

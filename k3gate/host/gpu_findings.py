"""Findings about GPUs: whether they answer, whole or in parts, their errors, their power, and where they hang."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from k3gate import links, topology
from k3gate.host.gpus import HARMFUL
from k3gate.records import Finding, Gpu, Inventory, Severity, State
from k3gate.units import capital, count, gib, listed, quantity

_SHOWN = 8


def find(inventory: Inventory) -> Iterator[Finding]:
    """All of them."""
    gpus = inventory.gpus or ()
    if not gpus:
        return
    good = [one for one in gpus if one.state is State.OK]
    yield from _unreachable(gpus)
    yield from _partitioned(good)
    yield from _errors(good)
    yield from _settings(good)
    yield from _places(inventory, gpus)
    yield from _peers(inventory, good)


def name(gpu: Gpu) -> str:
    """The GPU in words: its address, or its name where it has none."""
    return gpu.address or gpu.name or "a GPU without an address"


def _all(gpus: Sequence[Gpu]) -> str:
    more = f" and {len(gpus) - _SHOWN} more" if len(gpus) > _SHOWN else ""
    return listed(name(one) for one in gpus[:_SHOWN]) + more


def _unreachable(gpus: Sequence[Gpu]) -> Iterator[Finding]:
    lost = [one for one in gpus if one.state is not State.OK and (one.reason or "").startswith("lost")]
    silent = [one for one in gpus if one.state is not State.OK and one not in lost]
    if lost:
        yield Finding(
            "gpu_lost",
            Severity.HIGH,
            f"{len(lost)} of {count(len(gpus), 'GPU')} {'is' if len(lost) == 1 else 'are'} lost",
            f"{_all(lost)}: {lost[0].reason}; {len(gpus) - len(lost)} of {len(gpus)} answer",
            f"all {len(gpus)} answer",
            "What was planned onto that GPU has no place; a card that falls off its bus once mostly does so again.",
            "Look for Xid messages in the kernel's log, reseat the card and its power, and have it replaced where it "
            "happens again.",
        )
    if silent:
        yield Finding(
            "gpu_unreachable",
            Severity.HIGH,
            f"{count(len(silent), 'GPU')} cannot be asked",
            f"{_all(silent)}: {silent[0].reason}",
            "a driver and a library that answer",
            "They are there, and nothing is known of their memory, clocks and errors; no GPU figure can be measured.",
            capital((silent[0].reason or "").partition(": ")[2] or "install the driver and its library")
            + ".",
        )


def _partitioned(gpus: Sequence[Gpu]) -> Iterator[Finding]:
    split = [one for one in gpus if one.partitioned]
    if split:
        parts = [
            f"{name(one)}: "
            + (
                f"{count(len(one.parts), 'part')} ({', '.join(gib(part.memory_bytes) for part in one.parts[:_SHOWN])})"
                if one.parts
                else one.partition_mode or "no part is made yet"
            )
            for one in split[:_SHOWN]
        ]
        yield Finding(
            "gpu_partitioned",
            Severity.HIGH,
            f"{count(len(split), 'GPU')} {'is' if len(split) == 1 else 'are'} partitioned, not representative",
            "; ".join(parts),
            "whole GPUs",
            "A part has a share of the memory, and all parts of a GPU share one link; figures of a part are not those "
            "of the card that would be bought.",
            "Ask for the GPUs unpartitioned; k3gate never changes the mode.",
        )


def _errors(gpus: Sequence[Gpu]) -> Iterator[Finding]:
    bad = [
        f"{name(one)}: {', '.join(told)}"
        for one in gpus
        if (
            told := [
                *([f"{one.ecc_uncorrected:,} uncorrected errors"] if one.ecc_uncorrected else []),
                *(["memory that could not be replaced by spare rows"] if one.repair_failed else []),
                *(["memory that waits to be replaced by spare rows"] if one.repair_pending else []),
            ]
        )
    ]
    if bad:
        yield Finding(
            "gpu_memory_errors",
            Severity.HIGH,
            "The memory of GPUs is damaged",
            "; ".join(bad[:_SHOWN]),
            "no uncorrected error, no repair that waits or failed",
            "An uncorrected error ends the runtime, and the part of the model that lay there.",
            "Reset the GPU so that spare rows are taken; have it replaced where errors come back.",
        )
    older = [
        f"{name(one)}: {one.ecc_uncorrected_lifetime:,} uncorrected"
        for one in gpus
        if one.ecc_uncorrected_lifetime and not one.ecc_uncorrected
    ]
    mended = [f"{name(one)}: {one.ecc_corrected:,} corrected" for one in gpus if one.ecc_corrected]
    if older or mended:
        yield Finding(
            "gpu_memory_errors_before",
            Severity.LOW,
            "The memory of GPUs has had errors",
            "; ".join([*mended, *(f"{text} over its life" for text in older)][:_SHOWN]),
            "none",
            "Corrected errors cost nothing by themselves; one that rises under load tells of a card that fails soon.",
            "Watch whether the counts rise under load.",
        )
    off = [one for one in gpus if one.ecc is False]
    if off:
        yield Finding(
            "gpu_ecc_off",
            Severity.LOW,
            "GPUs have their error correction off",
            _all(off),
            "on",
            "A wrong bit in a weight is then seen by nobody.",
            "sudo nvidia-smi -e 1, and a reset; it costs some memory and rate on cards with GDDR.",
        )


def _settings(gpus: Sequence[Gpu]) -> Iterator[Finding]:
    small = [
        one for one in gpus if one.memory_bytes and one.bar_bytes and one.bar_bytes < 0.9 * one.memory_bytes
    ]
    if small:
        one = small[0]
        yield Finding(
            "gpu_bar_small",
            Severity.LOW,
            "The CPU reaches only a part of the memory of GPUs (ReBAR is off, or not there)",
            f"{_all(small)}: {gib(one.bar_bytes)} of {gib(one.memory_bytes)}",
            "a BAR as large as the memory",
            "Copies by the copy engine do not need it; loaders that write through it, and some peers, do.",
            "Switch on Above 4G Decoding and Resizable BAR in the firmware settings, where card and board have them.",
        )
    held = [
        one
        for one in gpus
        if one.power_limit_w and one.power_default_w and one.power_limit_w < 0.999 * one.power_default_w
    ]
    if held:
        yield Finding(
            "gpu_power_limited",
            Severity.MEDIUM,
            "The power of GPUs is limited below their default",
            "; ".join(
                f"{name(one)}: {quantity(one.power_limit_w, 'W')} of {quantity(one.power_default_w, 'W')}"
                for one in held[:_SHOWN]
            ),
            "the default limit",
            "Clocks under load are lower than those of the card that would be bought.",
            "sudo nvidia-smi -pl WATTS (or rocm-smi) sets it; ask why it was lowered: supply, cooling or a choice.",
        )
    slowed = [(one, words) for one in gpus if (words := [w for w in one.throttle or () if w in HARMFUL])]
    if slowed:
        yield Finding(
            "gpu_slowed",
            Severity.HIGH,
            "GPUs are slowed down while nothing is measured yet",
            "; ".join(f"{name(one)}: {', '.join(words)}" for one, words in slowed[:_SHOWN]),
            "nothing that slows them",
            "A card that is too hot or short of power while idle is slower still under load.",
            "Look at cooling, power cables and supplies before anything is measured.",
        )


def _places(inventory: Inventory, gpus: Sequence[Gpu]) -> Iterator[Finding]:
    nodes = {node.id: node for node in inventory.numa.nodes}
    main = {node.id for node in topology.main_nodes(inventory)}
    hung = [one for one in gpus if one.address is not None and not one.shared_memory]
    if len(nodes) > 1:
        # A GPU that only its library tells of, as in a guest of a cloud, hangs nowhere that could be seen.
        unknown = [one for one in hung if one.node is None]
        if unknown:
            yield Finding(
                "gpu_node_unknown",
                Severity.MEDIUM,
                f"The NUMA node of {count(len(unknown), 'GPU')} is not told",
                _all(unknown),
                "the node at which each GPU hangs",
                "Weights go to a GPU about a third as fast from the far socket; which one is near is then not known.",
                "Measure copies from every node; a firmware update mostly tells it (_PXM).",
            )
        bare = [one for one in hung if one.node in nodes and one.node not in main]
        if bare:
            yield Finding(
                "gpu_node_without_memory",
                Severity.HIGH,
                "GPUs hang at a node without memory of its own",
                "; ".join(f"{name(one)} at node {one.node}" for one in bare[:_SHOWN]),
                "memory at the node of each GPU",
                "Every byte that goes to them crosses from another node.",
                "Populate the memory of that node, or move the card to another slot.",
            )
    where = {one.node for one in hung if one.node is not None}
    packages = topology.nodes_of_packages(inventory.cpu, inventory.numa)
    sockets = {package for package, own in packages.items() if where & set(own)}
    with_memory = {package for package, own in packages.items() if main & set(own)}
    told = [one for one in hung if one.node is not None]
    if len(with_memory) > 1 and len(sockets) == 1 and len(told) == len(hung) > 1:
        yield Finding(
            "gpus_on_one_socket",
            Severity.MEDIUM,
            f"All {len(hung)} GPUs hang on socket {sorted(sockets)[0]} of {len(packages)}",
            f"{_all(hung)} at {'node' if len(where) == 1 else 'nodes'} {', '.join(map(str, sorted(where)))}",
            "GPUs at every socket that holds weights",
            "What comes from the memory of the other sockets crosses between them first.",
            "Spread the cards over the sockets, or keep what the GPUs read at their node.",
        )
    yield from _meet(inventory, hung)


def _meet(inventory: Inventory, hung: Sequence[Gpu]) -> Iterator[Finding]:
    wanted = [one.address for one in hung if one.address is not None]
    shared = [
        one
        for one in links.meetings(inventory.pci or (), wanted)
        if one.bytes_per_s is None
        or one.wanted_bytes_per_s is None
        or one.bytes_per_s < 0.999 * one.wanted_bytes_per_s
    ]
    if shared:
        yield Finding(
            "gpus_share_link",
            Severity.MEDIUM,
            f"GPUs share a link to the processor in {count(len(shared), 'place')}",
            "; ".join(
                f"{listed(one.devices)} behind {one.at}"
                + (
                    f": {quantity(one.bytes_per_s, 'B/s')} for {quantity(one.wanted_bytes_per_s, 'B/s')}"
                    if one.bytes_per_s and one.wanted_bytes_per_s
                    else ""
                )
                for one in shared[:_SHOWN]
            ),
            "a root port for each GPU",
            "When all copy at once, each gets its part of that link; weights and activations then come so much slower.",
            "Spread the cards over root ports, or count with the shared rate.",
        )


def _peers(inventory: Inventory, gpus: Sequence[Gpu]) -> Iterator[Finding]:
    hung = [one for one in inventory.pci or () if one.kind == "gpu"]
    bridges = {address for one in hung for address in one.above}
    redirecting = [one for one in inventory.pci or () if one.address in bridges and one.redirects]
    if len(hung) > 1 and redirecting:
        translated = any(one.iommu in ("DMA", "DMA-FQ") for one in hung)
        passing = not translated and (
            any(one.iommu == "identity" for one in hung)
            or "iommu=pt" in (inventory.kernel.command_line or "").split()
        )
        yield Finding(
            "peer_copies_redirected",
            Severity.LOW if passing else Severity.MEDIUM,
            "Access control on bridges sends copies between GPUs up to the root",
            f"ACS redirects {' and '.join(redirecting[0].redirects or ())} on "
            f"{', '.join(one.address for one in redirecting[:_SHOWN])}"
            + (
                "; the IOMMU passes addresses unchanged" if passing else "; the IOMMU may translate addresses"
            ),
            "no redirection below a switch that GPUs share",
            "Copies between GPUs then pass the root complex instead of the switch: slower, and on some machines they "
            "hang. Copies between memory and GPU are not affected.",
            "Measure peer copies with a time limit before relying on them. The setting is the firmware's (ACS), "
            "and guests need it for their isolation: ask the maker of the machine. k3gate changes no register.",
        )
    refused = [
        f"{name(one)} to {peer}: {why}"
        for one in gpus
        for peer, why in one.peer_access.items()
        if why != "ok" and not any(link.active for link in one.nvlinks)
    ]
    if refused:
        yield Finding(
            "peer_copies_refused",
            Severity.LOW,
            "GPUs cannot copy straight to each other",
            "; ".join(refused[:3]) + (f" and {len(refused) - 3} more" if len(refused) > 3 else ""),
            "peer access",
            "What goes from GPU to GPU passes through memory twice.",
            "Nothing where the layers are split by GPU and little goes between them; else choose cards that have it.",
        )
    down = [(one, sum(link.active is False for link in one.nvlinks)) for one in gpus]
    down = [(one, dark) for one, dark in down if dark and dark < len(one.nvlinks)]
    if down:
        yield Finding(
            "nvlink_down",
            Severity.MEDIUM,
            "Some NVLinks are down",
            "; ".join(f"{name(one)}: {dark} of {len(one.nvlinks)}" for one, dark in down[:_SHOWN]),
            "all of a GPU's links, or none",
            "What GPUs exchange goes over fewer links.",
            "Look at bridges and boards between the cards, and at the fabric manager's log.",
        )

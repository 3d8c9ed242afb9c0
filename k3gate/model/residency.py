"""What must lie in CPU memory for a way of laying out Kimi K3. Pure arithmetic, every part named.

Held are weights, KV cache and recurrent state. Page cache, operating system and a runtime's own workspace
come on top and are not guessed here; the measured residency and the peak of a running runtime show them.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from attrs import frozen

from k3gate import units
from k3gate.errors import UsageError
from k3gate.model import k3

TRUNKS = ("bf16", "q8_0", "gpu")
"""How the text trunk is laid out: as released, at 8.5 bits in CPU memory, or on GPUs."""

PART_TITLES: Mapping[str, str] = MappingProxyType(
    {
        "experts": "routed experts",
        "trunk": "trunk",
        "vision": "vision",
        "kv_cache": "KV cache",
        "state": "recurrent state",
        "convolution": "convolution state",
    }
)


@frozen
class Image:
    """What CPU memory holds: `bytes` in all, and by part. `trunk` as asked; `copies` of all the weights.

    Of one of `machines` that share it.
    """

    bytes: int
    parts: Mapping[str, int]
    trunk: str
    copies: int = 1
    machines: int = 1

    def arithmetic(self) -> str:
        """The sum as a person checks it: "1,560.7 GB (routed experts 1,446.5 + trunk 113.5 + ...)"."""
        shown = " + ".join(f"{PART_TITLES[part]} {_gigabytes(size)}" for part, size in self.parts.items())
        copies = f", the weights {self.copies} times" if self.copies > 1 else ""
        machines = f", divided over {self.machines} machines" if self.machines > 1 else ""
        return f"{units.exact_bytes(self.bytes)} ({shown}{copies}{machines})"


def _gigabytes(size: int) -> str:
    return f"{size / 1e9:,.1f}" if size >= 50_000_000 else f"{size / 1e9:,.2f}"


def image(
    trunk: str, vision: bool, context: int, sequences: int, copies: int = 1, machines: int = 1
) -> Image:
    """The image in CPU memory, in bytes.

    `trunk`: one of `TRUNKS`. With "gpu" trunk, vision, KV cache and state are on the GPUs, and CPU memory
    holds the routed experts alone. `context`: tokens of each of `sequences`. `copies`: how often a runtime
    keeps the weights (once per NUMA node, for some). `machines` share all of it evenly. Raises
    `UsageError` for what cannot be.
    """
    check(trunk, context, sequences)
    if machines < 1:
        raise UsageError(f"{machines} machines cannot be: give 1 or more")
    if copies < 1:
        raise UsageError(f"{copies} copies of the weights cannot be: give 1 or more")
    parts = {"experts": copies * k3.ROUTED_BYTES}
    if trunk != "gpu":
        parts["trunk"] = copies * (k3.TRUNK_BYTES if trunk == "bf16" else k3.TRUNK_Q8_0_BYTES)
        if vision:
            parts["vision"] = copies * k3.VISION_BYTES
        parts["kv_cache"] = k3.KV_BYTES_PER_TOKEN * context * sequences
        parts["state"] = k3.STATE_BYTES * sequences
        parts["convolution"] = k3.CONVOLUTION_BYTES * sequences
    parts = {part: -(-size // machines) for part, size in parts.items()}
    return Image(sum(parts.values()), MappingProxyType(parts), trunk, copies, machines)


def weight_bytes(trunk: str, vision: bool) -> int:
    """Bytes of weights to be loaded from storage. A trunk on GPUs counts as released, in BF16."""
    text = k3.TRUNK_Q8_0_BYTES if trunk == "q8_0" else k3.TRUNK_BYTES
    return k3.ROUTED_BYTES + text + (k3.VISION_BYTES if vision else 0)


def check(trunk: str, context: int, sequences: int) -> None:
    """Raise `UsageError` for a layout that is not known, or a context or count that cannot be."""
    if trunk not in TRUNKS:
        raise UsageError(f"trunk layout {trunk!r} is unknown: use one of {', '.join(TRUNKS)}")
    if not 0 <= context <= k3.MAX_CONTEXT:
        raise UsageError(f"context {context} is outside 0 to {k3.MAX_CONTEXT}, the most that Kimi K3 takes")
    if sequences < 1:
        raise UsageError(f"{sequences} sequences cannot be: give 1 or more")

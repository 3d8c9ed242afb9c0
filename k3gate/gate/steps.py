"""The seven steps of the procurement gate and the ids of their checks. Fixed; criteria fill them."""

from __future__ import annotations

from attrs import frozen


@frozen
class Step:
    """One step: its number, the name that starts the ids of its checks, the question it answers."""

    number: int
    name: str
    title: str
    question: str
    checks: tuple[str, ...]

    def ids(self) -> tuple[str, ...]:
        """Full ids, such as "roofline.local"."""
        return tuple(f"{self.name}.{check}" for check in self.checks)


def _step(number: int, name: str, title: str, question: str, checks: str) -> Step:
    return Step(number, name, title, question, tuple(checks.split()))


STEPS: tuple[Step, ...] = (
    _step(1, "checkpoint", "Checkpoint", "What exactly is to be run?", "identity complete checksums licence"),
    _step(2, "runtime", "Runtime", "Does a runtime really support it?", "registry loaded"),
    _step(
        3,
        "quantization",
        "Quantization",
        "Does the conversion keep the meaning?",
        "layout lossless_or_bounded kernel_reference",
    ),
    _step(
        4,
        "prototype",
        "Prototype",
        "What does it do on this box?",
        "residency peak_memory load_time prefill decode concurrency served_identity",
    ),
    _step(
        5,
        "correctness",
        "Correctness",
        "Is the output right?",
        "text reasoning tools long_context vision template",
    ),
    _step(
        6,
        "roofline",
        "Roofline",
        "Which tier limits it?",
        "bare_metal idle population speed placement local remote latency gemm replay skew storage pcie_links "
        "pcie_rate network sustained errors power",
    ),
    _step(7, "bom", "BOM", "May the order be frozen?", "match links steps"),
)

CHECKS: dict[str, int] = {check: step.number for step in STEPS for check in step.ids()}
"""Every check id with the number of its step."""

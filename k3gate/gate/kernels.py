"""Whether products on this machine agree with float64: what the proofs of a run's products say together. Pure."""

from __future__ import annotations

from k3gate.gate.judgement import Judgement, unproven
from k3gate.model.k3 import RELEASED_FORMATS
from k3gate.probing.outcomes import evidence as believed
from k3gate.records import RunRecord, Verdict
from k3gate.units import count

_PRODUCTS = ("kernel.expert.", "kernel.product.")
_PROOFS = ("kernel_reference", "timed_output")


def kernel_reference(record: RunRecord) -> Judgement:
    """One product that differs fails; a pass needs both proofs of products of each format of the released weights.

    They are our products: whether a runtime's own kernels compute rightly is seen in its answers, in step 5.
    """
    good: dict[str, list[str]] = {}
    wrong: list[tuple[str, str]] = []
    for outcome in record.outcomes:
        for metric in believed(outcome):
            if not metric.name.startswith(_PRODUCTS):
                continue
            row = f"{outcome.probe}/{outcome.case}#{metric.name}"
            proofs = {proof.name: proof for proof in metric.proofs if proof.name in _PROOFS}
            bad = next((proof for proof in proofs.values() if proof.ok is False), None)
            if bad is not None:
                what = f"{metric.labels.get('format')} by {metric.labels.get('path')}"
                wrong.append((row, f"{what}, {metric.labels.get('tokens')} tokens: {bad.detail}"))
            elif len(proofs) == len(_PROOFS) and all(proof.ok for proof in proofs.values()):
                good.setdefault(str(metric.labels.get("format")), []).append(row)
    if wrong:
        rows = tuple(dict.fromkeys(row for row, _ in wrong))
        return Judgement(
            Verdict.FAIL,
            f"{count(len(wrong), 'figure')} withheld, since products differ from float64 ({wrong[0][1]}).",
            observed=f"{len(wrong)} wrong",
            evidence=rows,
        )
    lacking = [kind for kind in RELEASED_FORMATS if kind not in good]
    rows = tuple(dict.fromkeys(row for own in good.values() for row in own))
    proven = " and ".join(kind.upper() for kind in good)
    if lacking:
        told = f"; those of {proven} were" if proven else ""
        kinds = " and ".join(kind.upper() for kind in lacking)
        return unproven(f"No products of {kinds} weights were proven in this run{told}.", rows)
    return Judgement(
        Verdict.PASS,
        f"Products of {proven} weights agreed with float64 before they were timed, and random rows of what was timed "
        "did so after; they are k3gate's own, and a runtime's kernels are judged by its answers.",
        observed=f"{sum(map(len, good.values()))} figures proven",
        evidence=rows,
    )

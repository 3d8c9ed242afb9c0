"""Whether products on this machine agree with float64: what the proofs of a run's products say together. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from k3gate.analysis.kernels import tokens_of
from k3gate.gate.judgement import Judgement, unproven
from k3gate.model.k3 import RELEASED_FORMATS
from k3gate.probing.outcomes import evidence as believed
from k3gate.records import RunRecord, Verdict
from k3gate.units import count, listed

_PRODUCTS = ("kernel.expert.", "kernel.product.")
_PROOFS = ("kernel_reference", "timed_output")
_NAMED = 4
"""How many of the figures that lack a proof are named."""


def kernel_reference(record: RunRecord) -> Judgement:
    """One product that differs fails; a pass needs both proofs of every product, and products of each released format.

    They are our products: whether a runtime's own kernels compute rightly is seen in its answers, in step 5.
    """
    good: dict[str, list[tuple[str, int]]] = {}
    wrong: list[tuple[str, str]] = []
    open_: list[tuple[str, str]] = []
    for outcome in record.outcomes:
        for metric in believed(outcome):
            if not metric.name.startswith(_PRODUCTS):
                continue
            row = f"{outcome.probe}/{outcome.case}#{metric.name}"
            kind = str(metric.labels.get("format"))
            proofs = [proof for proof in metric.proofs if proof.name in _PROOFS]
            bad = next((proof for proof in proofs if proof.ok is False), None)
            tokens = tokens_of(metric)
            if bad is not None:
                what = f"{kind} by {metric.labels.get('path')}"
                wrong.append((row, f"{what}, {metric.labels.get('tokens')} tokens: {bad.detail}"))
            elif tokens is None:
                open_.append((row, f"{outcome.case} with an unknown number of tokens"))
            elif {proof.name for proof in proofs} != set(_PROOFS) or any(not proof.ok for proof in proofs):
                open_.append((row, f"{outcome.case} with {count(tokens, 'token')}"))
            else:
                good.setdefault(kind, []).append((row, tokens))
    if wrong:
        rows = tuple(dict.fromkeys(row for row, _ in wrong))
        return Judgement(
            Verdict.FAIL,
            f"{count(len(wrong), 'figure')} withheld, since products differ from float64 ({wrong[0][1]}).",
            observed=f"{len(wrong)} wrong",
            evidence=rows,
        )
    if open_:
        names = list(dict.fromkeys(name for _, name in open_))
        more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
        return unproven(
            f"{count(len(open_), 'figure')} without both proofs, of the product before it was timed and of what was "
            f"timed: {', '.join(names[:_NAMED])}{more}.",
            tuple(dict.fromkeys(row for row, _ in open_)),
        )
    lacking = [kind for kind in RELEASED_FORMATS if kind not in good]
    rows = tuple(dict.fromkeys(row for own in good.values() for row, _ in own))
    if lacking:
        proven = listed(kind.upper() for kind in good)
        told = f"; those of {proven} were" if proven else ""
        kinds = listed(kind.upper() for kind in lacking)
        return unproven(f"No products of {kinds} weights were proven in this run{told}.", rows)
    return Judgement(
        Verdict.PASS,
        f"Products of {_proven(good)} agreed with float64 before they were timed, and random rows of what was timed "
        "did so after; they are k3gate's own, and a runtime's kernels are judged by its answers.",
        observed=f"{sum(map(len, good.values()))} figures proven",
        evidence=rows,
    )


def _proven(good: Mapping[str, Sequence[tuple[str, int]]]) -> str:
    """ "MXFP4 and BF16 weights with 1 and 4 tokens", each format apart where their tokens differ."""
    kinds: dict[tuple[int, ...], list[str]] = {}
    for kind, figures in good.items():
        kinds.setdefault(tuple(sorted({tokens for _, tokens in figures})), []).append(kind.upper())
    return " and of ".join(
        f"{listed(own)} weights with {listed(map(str, tokens))} {'token' if tokens == (1,) else 'tokens'}"
        for tokens, own in kinds.items()
    )

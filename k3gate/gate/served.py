"""Whether what answered in this run is the checkpoint that the target means."""

from __future__ import annotations

from k3gate.gate import rules
from k3gate.gate.criteria import Criterion
from k3gate.gate.judgement import Judgement, unproven
from k3gate.gate.targets import Target
from k3gate.records import RunRecord, Verdict


def identity(criterion: Criterion, record: RunRecord, target: Target) -> Judgement:
    """The evidence of this run, about the checkpoint or the conversion that the target pins where it pins one."""
    found = rules.evidence(criterion, record, target)
    if found.verdict is not Verdict.PASS:
        return found
    pinned = {target.subjects[kind] for kind in ("checkpoint", "converted") if kind in target.subjects}
    served = {
        one.data.get("checkpoint")
        for one in record.evidence
        if one.check == criterion.id
        and one.subject == found.observed
        and one.data.get("run") == record.run.id
    }
    if not served:
        return unproven("What a runtime had open in another run says nothing of this one.", found.evidence)
    if pinned and not served <= pinned:
        return Judgement(
            Verdict.FAIL,
            f"{found.reason} But that is another checkpoint than the target's: {str(served.pop())[:40]}.",
            observed=found.observed,
            evidence=found.evidence,
        )
    return found

"""The procurement gate: seven steps, criteria and targets as data, verdicts by one evaluator, waivers.

Pure functions over records: nothing here opens a store, measures, or looks at the machine.
"""

from __future__ import annotations

from typing import Any

from k3gate.documents import plain
from k3gate.records import CheckResult, GateResult

_CHECK_KEYS = tuple(field.name for field in CheckResult.__attrs_attrs__)


def document(result: GateResult) -> dict[str, Any]:
    """The gate as `--json` prints it; quantities in base units, unknown is null."""
    return {
        "run": result.run,
        "target": result.target,
        "target_hash": result.target_hash,
        "criteria": result.criteria,
        "criteria_hash": result.criteria_hash,
        "version": result.version,
        "evaluated": result.evaluated,
        "verdict": result.verdict.value,
        "waivers": result.waivers,
        "notices": list(result.notices),
        "steps": [
            {
                "step": step.step,
                "name": step.name,
                "question": step.question,
                "verdict": step.verdict.value,
                "checks": [{key: plain(getattr(check, key)) for key in _CHECK_KEYS} for check in step.checks],
            }
            for step in result.steps
        ],
    }

"""What a run tells while it goes on. The command line draws it; tests and `--json` leave it silent."""

from __future__ import annotations

from k3gate.probing.plan import Execution, Plan
from k3gate.records import Outcome, Round


class Listener:
    """Does nothing; a subclass shows what it wants to show."""

    def planned(self, plan: Plan, done: int) -> None:
        """The run begins; `done` executions were measured before it was interrupted."""

    def execution(self, execution: Execution) -> None:
        """A worker is about to start."""

    def beat(self, case: str | None, note: str) -> None:
        """Work goes on."""

    def measured(self, outcome: Outcome, latest: Round) -> None:
        """One round of a case ended and is stored."""

    def notice(self, text: str) -> None:
        """Something the user should know now."""

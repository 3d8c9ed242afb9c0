"""What is installed: the probes, whether they apply here, and their metrics."""

from __future__ import annotations

from typing import Any

from k3gate import host
from k3gate.documents import plain
from k3gate.probing import registry
from k3gate.probing.contract import Reason


def probes() -> dict[str, Any]:
    """The JSON document of `k3gate probes`; a broken probe is a notice, not an error."""
    notices: list[str] = []
    inventory = host.read()
    listed = []
    for listing in registry.installed(notices):
        try:
            (probe,) = registry.load([listing.name])
        except Exception as error:
            notices.append(str(error))
            continue
        applies = probe.applies(inventory)
        listed.append(
            {
                "name": probe.name,
                "title": probe.title,
                "ours": listing.ours,
                "distribution": listing.distribution,
                "on_request": listing.name in registry.ON_REQUEST,
                "state": applies.state.value if isinstance(applies, Reason) else "ok",
                "reason": applies.text if isinstance(applies, Reason) else None,
                "metrics": [plain(metric) for metric in probe.metrics],
            }
        )
    return {"probes": listed, "notices": notices}

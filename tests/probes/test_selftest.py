from __future__ import annotations

import hashlib

import pytest

from k3gate.probes import selftest
from k3gate.probing import plan, profiles


def test_the_known_digests_are_those_of_the_known_bytes() -> None:
    for size, digest in selftest.DIGESTS.items():
        assert hashlib.sha256(bytes(range(256)) * (size // 256)).hexdigest() == digest


@pytest.mark.parametrize("kind", ["vm", "bare_metal"])
def test_every_machine_gets_five_cases_of_three_rounds_within_the_shortest_profile(
    make_inventory, kind
) -> None:
    planned = plan.plan([selftest.SelfTestProbe()], make_inventory(kind), profiles.load("smoke"))
    assert len(planned.cases) == 5 and {case.rounds for case in planned.cases} == {3}
    assert planned.seconds < 3 and planned.left_out == () and len(planned.groups) == 2


def test_a_wrong_digest_fails_the_case(make_inventory, monkeypatch) -> None:
    from k3gate.errors import ProbeError

    class Context:
        round, seconds = 0, 1.0

        def share(self, key, build, release=None):
            return build()

    probe = selftest.SelfTestProbe()
    case = plan.plan([probe], make_inventory(), profiles.load("smoke")).cases[0]
    monkeypatch.setattr(selftest, "DIGESTS", dict.fromkeys(selftest.DIGESTS, "0" * 64))
    with pytest.raises(ProbeError, match="this CPU computes wrongly"):
        list(probe.run(case, Context()))

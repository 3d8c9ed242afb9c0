"""The self-test: hashes known bytes. It shows that plan, workers, store and report work; runs by name only.

Test hook: K3GATE_SELFTEST_FAULT="CASE:ROUND:KIND[,...]" makes a case misbehave in a round, so that it can be
seen that this costs that case alone. Kinds: crash (SIGSEGV), sigill, kill, hang (works on without end),
silent (no sign of life), exception, flood (8 MiB on stdout, then goes on), not_permitted, exit.
"""

from __future__ import annotations

import hashlib
import os
import signal
import sys
import time
from collections.abc import Iterator, Mapping

from k3gate.errors import NotPermittedError, ProbeError
from k3gate.metrics import SELFTEST_RATE
from k3gate.probing.contract import Applies, Context, Planned, Reason
from k3gate.records import Case, Inventory, Metric, Profile, Proof

FAULT_VARIABLE = "K3GATE_SELFTEST_FAULT"
SAMPLES = 3
SAMPLE_SECONDS = 0.005
"""Hashing goes on for at least this long in a sample: five times what pyperf calls too short."""

DIGESTS: Mapping[int, str] = {
    2**16: "7daca2095d0438260fa849183dfc67faa459fdf4936e1bc91eec6b281b27e4c2",
    2**18: "2312394bd99545d9de131c24efb781e765ac1aec243f2ed9347597a793a415e9",
    2**20: "fbbab289f7f94b25736c58be46a994c441fd02552cc6022352e3d86d2fab7c83",
    2**21: "91d3beb88a9b2f778a6c44a1c53b63d3c79931845a9aef84b3fb414610bd1938",
    2**22: "2b07811057df887086f06a67edc6ebf911de8b6741156e7a2eb1416a4b8b1b2e",
}
"""SHA-256 of 0, 1, ... 255 repeated to so many bytes, as coreutils' sha256sum gives it."""


class SelfTestProbe:
    """Five sizes in two groups, three rounds, about a second in all."""

    name = "selftest"
    title = "The harness itself: SHA-256 of known bytes"
    metrics = (SELFTEST_RATE,)

    def applies(self, inventory: Inventory) -> Applies | Reason:
        """Everywhere."""
        return Applies()

    def cases(self, inventory: Inventory, profile: Profile) -> Planned:
        """The same cases for every machine and budget."""
        return Planned(
            tuple(
                Case(
                    probe=self.name,
                    name=f"hash.{size // 1024}k",
                    title=f"hash {size // 1024} KiB",
                    group="small" if size < 2**20 else "large",
                    parameters={"bytes": size},
                    seconds=2 * SAMPLES * SAMPLE_SECONDS,
                    bytes=2 * max(DIGESTS),
                    setup_seconds=SAMPLE_SECONDS,
                    time_limit_s=20.0,
                    labels={"bytes": size},
                )
                for size in DIGESTS
            )
        )

    def run(self, case: Case, context: Context) -> Iterator[Metric]:
        """Hash the pattern, check the digest outside the timed region, yield bytes per second."""
        _misbehave(case.name, context)
        size = int(case.parameters["bytes"])
        data = context.share(f"pattern of {size}", lambda: bytes(range(256)) * (size // 256))
        samples = []
        for _ in range(SAMPLES):
            hashed, begun = 0, time.perf_counter()
            while (elapsed := time.perf_counter() - begun) < SAMPLE_SECONDS:
                digest = hashlib.sha256(data).hexdigest()
                hashed += size
            if digest != DIGESTS[size]:
                raise ProbeError(
                    f"SHA-256 of {size} known bytes came out as {digest}: this CPU computes wrongly"
                )
            samples.append(context.sample(hashed / elapsed, elapsed))
        proof = Proof(
            "checksum", True, f"SHA-256 of {size} bytes is {DIGESTS[size][:16]}... as sha256sum has it"
        )
        yield context.metric(SELFTEST_RATE, samples, dict(case.labels), [proof])


def _misbehave(case: str, context: Context) -> None:
    for fault in filter(None, os.environ.get(FAULT_VARIABLE, "").split(",")):
        name, round_, kind = fault.rsplit(":", 2)
        if name == case and int(round_) == context.round:
            _fault(kind, context)


def _fault(kind: str, context: Context) -> None:
    signals = {"crash": signal.SIGSEGV, "sigill": signal.SIGILL, "kill": signal.SIGKILL}
    if kind in signals:
        os.kill(os.getpid(), signals[kind])
    elif kind == "hang":
        while True:
            context.heartbeat("hanging on purpose")
            time.sleep(0.01)
    elif kind == "silent":
        signal.pause()
    elif kind == "exception":
        raise ValueError("an exception on purpose")
    elif kind == "flood":
        for _ in range(128):
            sys.stdout.write("flood " * 10922 + "\n")
    elif kind == "not_permitted":
        raise NotPermittedError("refused on purpose")
    elif kind == "exit":
        os._exit(7)
    else:
        raise ValueError(f"{FAULT_VARIABLE} names no fault {kind!r}")

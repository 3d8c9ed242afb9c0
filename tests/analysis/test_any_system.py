"""Whatever a file describes, a plan is made or one line says why not: as text, JSON and HTML."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from k3gate.analysis import plan_text, planning, system_file
from k3gate.analysis.layout import Demand
from k3gate.analysis.planning import document
from k3gate.analysis.system import CLAIM_KINDS, TIERS
from k3gate.errors import UsageError
from k3gate.model.sizes import kimi_k3
from k3gate.reports import plan as page

COUNT = st.integers(1, 64)
SIZE = st.floats(0.001, 1e6)
RATE = st.floats(1e-3, 1e6)
TIER = st.sampled_from(TIERS)


def some(required: dict[str, Any], optional: dict[str, Any]) -> Any:
    return st.fixed_dictionaries(required, optional=optional)


MEMORY = some(
    {"modules": COUNT, "module_gib": SIZE},
    {
        "mts": st.integers(1, 99_999),
        "channels": COUNT,
        "slots": st.integers(64, 4096),
        "part": st.text(min_size=1),
    },
)
GPU = some(
    {"model": st.text(min_size=1), "memory_gb": SIZE},
    {"count": COUNT, "gb_per_s": RATE, "tflops": RATE, "pcie_gb_per_s": RATE, "watts": RATE},
)
EXTRA = some({"kind": st.sampled_from(["hbm", "pmem", "cxl"]), "gib": SIZE}, {"gb_per_s": RATE})
PREMISES = some(
    {},
    {
        **dict.fromkeys(("active_parameters_billion", "bits_per_parameter", "bandwidth_gb_per_s"), RATE),
        **dict.fromkeys(("bytes_per_token_gb", "weights_gb", "machine_gb_per_s"), RATE),
        "layers": COUNT,
        "channels": COUNT,
        "batch": COUNT,
        "context": st.integers(1, 2**40),
        "experts_bits": st.floats(0.5, 64),
        "machine": st.text(min_size=1),
        "tier": TIER,
    },
)
CLAIM = some(
    {"kind": st.sampled_from(sorted(CLAIM_KINDS)), "value": RATE, "source": st.text(min_size=1)},
    {"premises": PREMISES},
)
SYSTEM = some(
    {"name": st.text(min_size=1)},
    {
        "nodes": st.integers(1, 9),
        "cpu": some(
            {},
            {
                "model": st.text(min_size=1),
                "sockets": st.integers(1, 8),
                "cores": COUNT,
                "numa_nodes": st.integers(1, 4),
                "ghz": st.floats(0.1, 6),
                "isa": st.sampled_from(["avx2", "amx"]),
            },
        ),
        "memory": MEMORY,
        "gpu": st.lists(GPU, max_size=2),
        "tier": st.lists(EXTRA, max_size=2),
        "storage": some({}, {"drives": COUNT, "drive_gb": SIZE, "gb_per_s": RATE}),
        "network": some({}, {"gb_per_s": RATE, "latency_us": RATE}),
        "line": some({}, {"gbit_per_s": RATE}),
        "runtime": some(
            {},
            {
                "engine": st.sampled_from(["general", "tuned"]),
                "replicate_per_node": st.booleans(),
                "gpu_split": st.sampled_from(["tensor", "layer"]),
                "prefill_batch": st.integers(1, 1 << 20),
            },
        ),
        "placement": some({}, dict.fromkeys(("experts", "trunk", "embedding", "vision", "cache"), TIER)),
        "precision": some({}, {"experts": st.floats(0.5, 64), "trunk": st.sampled_from(["native", "q8_0"])}),
        "hot_experts": some({"per_layer": st.integers(1, 900)}, {"curve": st.just([[10, 0.1], [500, 0.9]])}),
        "prices": some({}, dict.fromkeys(("machine_usd", "hour_usd", "kwh_usd", "years"), RATE)),
        "claims": st.dictionaries(st.text(min_size=1), CLAIM, max_size=3),
        "notes": st.lists(st.text(), max_size=2),
    },
)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(SYSTEM, st.integers(1, 40), st.integers(0, 1_048_576))
def test_any_system_is_planned_or_told_why_not(data: dict[str, Any], batch: int, context: int) -> None:
    try:
        described = system_file.of_table("", data, "box.toml")
        made = planning.plan(
            described, kimi_k3(), Demand("any", context, batch, batch, decode_tokens_per_s=5.0)
        )
    except UsageError:
        return
    told = json.loads(json.dumps(document(made), allow_nan=False))
    found = made.estimate
    expected, ceiling = found.expected, found.decode.ceiling
    if expected.low is not None and expected.high is not None:
        assert 0 < expected.low <= expected.high
        assert ceiling is None or expected.high <= ceiling * (1 + 1e-9)
    assert len(told["claims"]) == len(data.get("claims", {}))
    assert all(claim["reasons"] for claim in told["claims"])
    text = plan_text.text(made)
    assert all(char.isprintable() or char in "\n\t\u00a0" for char in text)
    if found.layout.fits is False:
        assert "[short]" in text
    html = page.render(made)
    assert "<title>k3gate plan: " in html

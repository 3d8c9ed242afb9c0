"""Reading a system from TOML, strictly: unknown keys, wrong types and contradictions are refused in one line. Pure.

Keys carry the unit in which people state them (`module_gib`, `gb_per_s`, `mts`); records are in base units.
"""

from __future__ import annotations

from typing import Any

from k3gate.analysis import system_claims, system_model, system_parts
from k3gate.analysis.system import (
    ENGINES,
    GB,
    GIB,
    ISAS,
    KV_BYTES,
    PRECISIONS,
    TIERS,
    HotSet,
    Measured,
    Placement,
    Precision,
    Prices,
    Reserve,
    System,
)
from k3gate.analysis.system_parts import count
from k3gate.documents import digest
from k3gate.tables import Table, parse

_TOP = (
    *("name", "notes", "nodes", "board", "cpu", "memory", "gpu", "tier", "storage", "network", "line"),
    *("runtime", "placement", "precision", "hot_experts", "reserve", "prices", "power", "measured", "model"),
    *("claims", "sources"),
)


def read(text: str, name: str) -> System:
    """A system from TOML; `name`: of its file. `UsageError` says in one line which key is wrong, and where."""
    return of_table(text, parse(text, name, "system"), name)


def of_table(text: str, data: dict[str, Any], name: str) -> System:
    """A system from a parsed file."""
    top = Table(f"system file {name}", data, _TOP)
    cpu = top.table("cpu", ("model", "sockets", "cores", "numa_nodes", "ghz", "isa", "watts"))
    network = top.table("network", ("gb_per_s", "latency_us", "fabric"))
    line = top.table("line", ("gbit_per_s",))
    runtime = top.table("runtime", ("name", "engine", "replicate_per_node", "prefill_batch", "gpu_split"))
    power = top.table("power", ("other_watts",))
    model_path, model, overrides = system_model.model(top)
    hot, curve = _hot(top)
    memory, sockets = system_parts.memory(top), count(cpu, "sockets", 64)
    if memory and sockets and memory.channels and (memory.populated or 0) > memory.channels * sockets:
        raise top.refuse(
            "memory",
            f"populated_channels {memory.populated} are more than {sockets} x {memory.channels} channels of the "
            "sockets; correct one of them",
        )
    hertz = cpu.positive("ghz")
    latency = network.positive("latency_us")
    gbit = line.positive("gbit_per_s")
    rate = network.positive("gb_per_s")
    return System(
        name=top.text("name"),
        text=text,
        hash=digest(text),
        nodes=top.integer("nodes", 1, 4096, 1),
        board=top.optional_text("board"),
        cpu_model=cpu.optional_text("model"),
        sockets=sockets,
        cores=count(cpu, "cores", 1024),
        numa_nodes=cpu.integer("numa_nodes", 1, 64, 1),
        hertz=hertz and hertz * 1e9,
        isa=cpu.choice("isa", tuple(ISAS)) if "isa" in cpu.data else None,
        cpu_watts=cpu.positive("watts"),
        memory=memory,
        gpus=system_parts.gpus(top),
        gpu_split=runtime.choice("gpu_split", ("tensor", "layer"))
        if "gpu_split" in runtime.data
        else "tensor",
        extras=system_parts.extras(top),
        storage=system_parts.storage(top),
        network_bytes_per_s=rate and rate * GB,
        network_seconds=latency and latency * 1e-6,
        network_fabric=network.optional_text("fabric"),
        line_bytes_per_s=gbit and gbit * 1e9 / 8,
        runtime=runtime.optional_text("name"),
        engine=runtime.choice("engine", ENGINES) if "engine" in runtime.data else "general",
        replicate=runtime.flag("replicate_per_node"),
        prefill_batch=runtime.integer("prefill_batch", 1, 1 << 20, 4096),
        placement=_placement(top),
        precision=_precision(top),
        hot=hot,
        curve=curve,
        reserve=_reserve(top),
        prices=_prices(top),
        other_watts=power.positive("other_watts"),
        measured=_measured(top),
        model_path=model_path,
        model=model,
        overrides=overrides,
        claims=system_claims.claims(top),
        notes=_notes(top),
        sources=_sources(top),
    )


def _placement(top: Table) -> Placement:
    keys = ("experts", "trunk", "embedding", "vision", "cache")
    table = top.table("placement", (*keys, "groups"))
    groups = table.table("groups")
    return Placement(
        **{key: table.choice(key, TIERS) for key in keys if key in table.data},
        groups={name: groups.choice(name, TIERS) for name in groups.data},
    )


def _bits(table: Table, key: str) -> float | None:
    """Bits of a parameter: a name or a number."""
    value = table.data.get(key)
    if value is None:
        return None
    if isinstance(value, str):
        return PRECISIONS[table.choice(key, tuple(PRECISIONS))]
    bits = table.positive(key)
    if bits is not None and not 0.5 <= bits <= 64:
        raise table.refuse(key, f"must be 0.5 to 64 bits a parameter, not {bits:g}")
    return bits


def _precision(top: Table) -> Precision:
    table = top.table("precision", ("experts", "trunk", "kv"))
    return Precision(
        _bits(table, "experts"),
        _bits(table, "trunk"),
        table.choice("kv", tuple(KV_BYTES)) if "kv" in table.data else "bf16",
        "trunk" in table.data,
    )


def _hot(top: Table) -> tuple[HotSet | None, tuple[tuple[int, float], ...]]:
    """The hot set, where one is placed, and the curve that says what any number of experts catches."""
    if "hot_experts" not in top.data:
        return None, ()
    table = top.table("hot_experts", ("per_layer", "curve"))
    curve = table.data.get("curve", [])
    wrong = table.refuse("curve", "must be a rising list of [experts of a layer, share of hits from 0 to 1]")
    if not isinstance(curve, list):
        raise wrong
    points: list[tuple[int, float]] = []
    for one in curve:
        good = (
            isinstance(one, list) and len(one) == 2 and type(one[0]) is int and type(one[1]) in (int, float)
        )
        if not good or one[0] <= (points[-1][0] if points else 0):
            raise wrong
        if not (points[-1][1] if points else 0) <= one[1] <= 1:
            raise wrong
        points.append((one[0], float(one[1])))
    number = count(table, "per_layer", 1 << 20)
    if number is None and not points:
        raise table.refuse("per_layer", "is missing; add it, or a curve")
    return (None if number is None else HotSet(number, tuple(points))), tuple(points)


def _reserve(top: Table) -> Reserve:
    keys = ("os", "page_cache", "workspace", "gpu_workspace")
    table = top.table("reserve", [f"{key}_gib" for key in keys])
    given: dict[str, int] = {}
    for key in keys:
        value = table.number(f"{key}_gib")
        if value is not None:
            if value < 0:
                raise table.refuse(f"{key}_gib", f"must not be below 0, not {value:g}")
            given[key] = round(value * GIB)
    return Reserve(**given)


def _prices(top: Table) -> Prices:
    table = top.table("prices", ("machine_usd", "hour_usd", "kwh_usd", "years", "utilisation"))
    used = table.positive("utilisation")
    if used is not None and used > 1:
        raise table.refuse("utilisation", f"is a share of the time, at most 1, not {used:g}")
    return Prices(
        table.positive("machine_usd"),
        table.positive("hour_usd"),
        table.positive("kwh_usd"),
        table.positive("years") or 3.0,
        used or 0.5,
    )


def _measured(top: Table) -> Measured:
    table = top.table("measured", ("dram_gb_per_s", "gpu_gb_per_s", "pmem_gb_per_s", "source"))
    rates = {}
    for tier in ("dram", "gpu", "pmem"):
        rate = table.positive(f"{tier}_gb_per_s")
        rates[tier] = rate and rate * GB
    if any(rates.values()):
        return Measured(**rates, source=table.text("source"))
    return Measured(source=table.optional_text("source"))


def _notes(top: Table) -> tuple[str, ...]:
    value = top.data.get("notes", [])
    if not isinstance(value, list) or not all(isinstance(one, str) and len(one) <= 2000 for one in value):
        raise top.refuse("notes", "must be a list of texts of at most 2000 characters")
    return tuple(value)


def _sources(top: Table) -> dict[str, str]:
    table = top.table("sources")
    return {key: table.text(key) for key in table.data}

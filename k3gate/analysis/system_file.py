"""Reading a system from TOML, strictly: unknown keys, wrong types and contradictions are refused in one line. Pure.

Keys carry the unit in which people state them (`module_gib`, `gb_per_s`, `mts`); records are in base units.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from k3gate.analysis.system import (
    CLAIM_KINDS,
    ENGINES,
    GB,
    GIB,
    ISAS,
    KV_BYTES,
    PRECISIONS,
    PREMISES,
    TIERS,
    Claim,
    Extra,
    Gpu,
    HotSet,
    Measured,
    MemoryModules,
    Override,
    Placement,
    Precision,
    Prices,
    Reserve,
    Storage,
    System,
)
from k3gate.documents import digest
from k3gate.model.sizes import ROLES, Group, ModelSizes
from k3gate.tables import Table, parse

_TOP = (
    *(
        "name",
        "notes",
        "nodes",
        "board",
        "cpu",
        "memory",
        "gpu",
        "tier",
        "storage",
        "network",
        "line",
        "runtime",
    ),
    *(
        "placement",
        "precision",
        "hot_experts",
        "reserve",
        "prices",
        "power",
        "measured",
        "model",
        "claims",
        "sources",
    ),
)
_CLAIM = ("kind", "value", "low", "high", "source", "premises")


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
    model_path, model, overrides = _model(top)
    hot, curve = _hot(top)
    memory, sockets = _memory(top), _count(cpu, "sockets", 64)
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
        cores=_count(cpu, "cores", 1024),
        numa_nodes=cpu.integer("numa_nodes", 1, 64, 1),
        hertz=hertz and hertz * 1e9,
        isa=cpu.choice("isa", tuple(ISAS)) if "isa" in cpu.data else None,
        cpu_watts=cpu.positive("watts"),
        memory=memory,
        gpus=tuple(_gpu(one) for one in _tables(top, "gpu", _GPU)),
        gpu_split=runtime.choice("gpu_split", ("tensor", "layer"))
        if "gpu_split" in runtime.data
        else "tensor",
        extras=tuple(_extra(one) for one in _tables(top, "tier", _EXTRA)),
        storage=_storage(top),
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
        claims=_claims(top),
        notes=_notes(top),
        sources=_sources(top),
    )


def _count(table: Table, key: str, most: int) -> int | None:
    return table.integer(key, 1, most) if key in table.data else None


def _tables(top: Table, key: str, known: Iterable[str]) -> list[Table]:
    value = top.data.get(key, [])
    if not isinstance(value, list):
        raise top.refuse(key, f"must be a list of tables: write it as [[{key}]]")
    return [Table(f"{top.place}, {key} {number}", one, known) for number, one in enumerate(value, 1)]


def _size(table: Table, stem: str, *, required: bool) -> int | None:
    """Bytes from `STEM_gib`, as memory is sold, or `STEM_gb`; both together contradict each other."""
    gib, gb = f"{stem}_gib", f"{stem}_gb"
    if gib in table.data and gb in table.data:
        raise table.refuse(gb, f"and {gib} are both given; leave one out")
    for key, factor in ((gib, GIB), (gb, GB)):
        value = table.positive(key)
        if value is not None:
            return round(value * factor)
    if required:
        raise table.refuse(gib, "is missing; add it")
    return None


def _memory(top: Table) -> MemoryModules | None:
    if "memory" not in top.data:
        return None
    known = ("type", "modules", "module_gib", "module_gb", "mts", "rated_mts", "channels", "slots")
    table = top.table("memory", (*known, "populated_channels", "part", "watts_per_module"))
    modules = table.integer("modules", 1, 4096)
    slots, channels = _count(table, "slots", 4096), _count(table, "channels", 64)
    populated = _count(table, "populated_channels", 4096)
    if slots is not None and modules > slots:
        raise table.refuse("modules", f"{modules} do not fit on {slots} slots; correct one of them")
    if populated is not None and populated > modules:
        raise table.refuse(
            "populated_channels", f"{populated} are more than {modules} modules; correct one of them"
        )
    size = _size(table, "module", required=True)
    assert size is not None
    mts, rated = _count(table, "mts", 100_000), _count(table, "rated_mts", 100_000)
    if mts is not None and rated is not None and mts > rated:
        raise table.refuse("mts", f"{mts} are above rated_mts, {rated}; correct one of them")
    return MemoryModules(
        modules=modules,
        module_bytes=size,
        mts=mts,
        type=table.optional_text("type"),
        channels=channels,
        slots=slots,
        populated=populated,
        part=table.optional_text("part"),
        rated_mts=rated,
        watts=table.positive("watts_per_module"),
    )


_GPU = ("model", "count", "memory_gib", "memory_gb", "gb_per_s", "tflops", "pcie_gb_per_s", "watts")
_EXTRA = ("kind", "modules", "module_gib", "module_gb", "gib", "gb", "gb_per_s", "detail")


def _gpu(table: Table) -> Gpu:
    size = _size(table, "memory", required=True)
    assert size is not None
    rate, flops, pcie = (table.positive(key) for key in ("gb_per_s", "tflops", "pcie_gb_per_s"))
    return Gpu(
        model=table.text("model"),
        count=table.integer("count", 1, 1024, 1),
        bytes=size,
        bytes_per_s=rate and rate * GB,
        flops=flops and flops * 1e12,
        pcie_bytes_per_s=pcie and pcie * GB,
        watts=table.positive("watts"),
    )


def _extra(table: Table) -> Extra:
    kind = table.choice("kind", ("hbm", "pmem", "cxl"))
    rate = table.positive("gb_per_s")
    modules = _count(table, "modules", 1024)
    size = _size(table, "module", required=modules is not None)
    if modules is not None and size is not None:
        total, detail = modules * size, f"{modules} x {size / GIB:g} GiB"
    else:
        gib, gb = table.positive("gib"), table.positive("gb")
        if (gib is None) == (gb is None):
            raise table.refuse("gib", "or gb must be given, one of them; add it")
        total = round(gib * GIB if gib is not None else (gb or 0) * GB)
        detail = f"{total / GIB:,.0f} GiB"
    return Extra(kind, total, rate and rate * GB, table.optional_text("detail") or detail, modules)


def _storage(top: Table) -> Storage | None:
    if "storage" not in top.data:
        return None
    table = top.table("storage", ("model", "drives", "drive_gb", "drive_gib", "gb_per_s", "watts_per_drive"))
    rate = table.positive("gb_per_s")
    size = _size(table, "drive", required=False)
    return Storage(
        table.integer("drives", 1, 1024, 1),
        size,
        rate and rate * GB,
        table.positive("watts_per_drive"),
        table.optional_text("model"),
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
    number = _count(table, "per_layer", 1 << 20)
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


OVERRIDES = ("layers", "active_parameters", "total_parameters", "experts", "experts_per_token", "weights_gb")


def _model(top: Table) -> tuple[str | None, ModelSizes | None, tuple[Override, ...]]:
    table = top.table("model", ("path", "stated", *OVERRIDES))
    path = table.optional_text("path")
    overrides = tuple(Override(key, value) for key in OVERRIDES if (value := table.positive(key)) is not None)
    if "stated" not in table.data:
        return path, None, overrides
    if path is not None:
        raise table.refuse("stated", "and path are both given; leave one out")
    return None, _stated(table.table("stated")), overrides


def _stated(table: Table) -> ModelSizes:
    """A model by hand: its groups with what they weigh, for what no facts are built in."""
    known = (
        "name",
        "source",
        "layers",
        "experts",
        "experts_per_token",
        "kv_bytes_per_token",
        "state_mb",
        "group",
    )
    table = Table(table.place, table.data, (*known, "width", "context"))
    groups = []
    for one in _tables(table, "group", ("name", "role", "gb", "parameters_billion")):
        parameters = one.positive("parameters_billion")
        size = one.positive("gb")
        if size is None:
            raise one.refuse("gb", "is missing; add it")
        groups.append(
            Group(
                one.text("name"),
                one.choice("role", ROLES),
                round(size * GB),
                None if parameters is None else round(parameters * 1e9),
            )
        )
    if not groups:
        raise table.refuse("group", "is missing; add one [[model.stated.group]] at least")
    layers, state = _count(table, "layers", 100_000), table.positive("state_mb")
    width = _count(table, "width", 1 << 24)
    experts, chosen = _count(table, "experts", 1 << 20), _count(table, "experts_per_token", 1 << 20)
    if experts is not None and chosen is not None and chosen > experts:
        raise table.refuse(
            "experts_per_token", f"{chosen} are more than {experts} experts; correct one of them"
        )
    return ModelSizes(
        name=table.text("name"),
        source=table.text("source"),
        groups=tuple(groups),
        layers=layers,
        expert_layers=layers,
        experts=experts,
        experts_per_token=chosen,
        expert_width=width,
        hidden=width,
        kv_bytes_per_token=table.integer("kv_bytes_per_token", 0, 1 << 40, 0),
        state_bytes=round(state * 1e6) if state else 0,
        convolution_bytes=0,
        max_context=_count(table, "context", 1 << 40),
    )


def _claims(top: Table) -> tuple[Claim, ...]:
    table = top.table("claims")
    found = []
    for name in table.data:
        one = table.table(name, _CLAIM)
        kind = CLAIM_KINDS[one.choice("kind", tuple(CLAIM_KINDS))]
        value, low, high = (one.positive(key) for key in ("value", "low", "high"))
        if (value is None) == (low is None) or (low is None) != (high is None):
            raise one.refuse("value", "must be given, or low and high instead; correct it")
        low, high = (value, value) if value is not None else (low, high)
        assert low is not None and high is not None
        if low > high:
            raise one.refuse("low", f"{low:g} is above high, {high:g}; swap them")
        premises = one.table("premises", PREMISES)
        for key in premises.data:
            if key == "machine":
                premises.text(key)
            elif key == "tier":
                premises.choice(key, TIERS)
            elif key == "kv":
                premises.choice(key, tuple(KV_BYTES))
            elif key in ("batch", "context"):
                premises.integer(key, 1, 65_536 if key == "batch" else 1 << 40)
            else:
                premises.positive(key)
        found.append(
            Claim(
                name,
                one.data["kind"],
                low * kind.factor,
                high * kind.factor,
                one.text("source"),
                dict(premises.data),
                kind.unit,
            )
        )
    return tuple(found)


def _notes(top: Table) -> tuple[str, ...]:
    value = top.data.get("notes", [])
    if not isinstance(value, list) or not all(isinstance(one, str) and len(one) <= 2000 for one in value):
        raise top.refuse("notes", "must be a list of texts of at most 2000 characters")
    return tuple(value)


def _sources(top: Table) -> dict[str, str]:
    table = top.table("sources")
    return {key: table.text(key) for key in table.data}

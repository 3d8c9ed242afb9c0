"""Parts of a machine from their tables: memory, GPUs, other tiers, drives. Pure.

`UsageError` names the key that is wrong, or that contradicts another one.
"""

from __future__ import annotations

from collections.abc import Iterable

from k3gate.analysis.system import FASTEST, GB, GIB, Extra, Gpu, MemoryModules, Storage
from k3gate.tables import Table

LEAST_BYTES = 1 << 20
"""No module or card of this age is smaller: less is a mistake of the unit."""


def count(table: Table, key: str, most: int) -> int | None:
    """A whole number from 1 to `most`; None where the key is not there."""
    return table.integer(key, 1, most) if key in table.data else None


def tables_of(top: Table, key: str, known: Iterable[str]) -> list[Table]:
    """The tables of a list of tables."""
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


def memory(top: Table) -> MemoryModules | None:
    """The DRAM of a machine; None where the file has none."""
    if "memory" not in top.data:
        return None
    known = ("type", "modules", "module_gib", "module_gb", "mts", "rated_mts", "channels", "slots")
    table = top.table("memory", (*known, "populated_channels", "part", "watts_per_module"))
    modules = table.integer("modules", 1, 4096)
    slots, channels = count(table, "slots", 4096), count(table, "channels", 64)
    populated = count(table, "populated_channels", 4096)
    if slots is not None and modules > slots:
        raise table.refuse("modules", f"{modules} do not fit on {slots} slots; correct one of them")
    if populated is not None and populated > modules:
        raise table.refuse(
            "populated_channels", f"{populated} are more than {modules} modules; correct one of them"
        )
    size = _size(table, "module", required=True)
    assert size is not None
    if size < LEAST_BYTES:
        raise table.refuse("module_gib", "of under 1 MiB holds nothing; correct it")
    mts, rated = count(table, "mts", 100_000), count(table, "rated_mts", 100_000)
    if mts is not None and rated is not None and mts > rated:
        raise table.refuse("mts", f"{mts} are above rated_mts, {rated}; correct one of them")
    kind = table.optional_text("type")
    fastest = FASTEST.get((kind or "").lower())
    for key, value in (("mts", mts), ("rated_mts", rated)):
        if fastest is not None and value is not None and value > fastest:
            raise table.refuse(
                key, f"{value} are above {fastest}, the fastest {kind} that is sold; correct one of them"
            )
    return MemoryModules(
        modules=modules,
        module_bytes=size,
        mts=mts,
        type=kind,
        channels=channels,
        slots=slots,
        populated=populated,
        part=table.optional_text("part"),
        rated_mts=rated,
        watts=table.positive("watts_per_module"),
    )


def gpus(top: Table) -> tuple[Gpu, ...]:
    """The GPUs of a machine by kind."""
    return tuple(_gpu(one) for one in tables_of(top, "gpu", _GPU))


def extras(top: Table) -> tuple[Extra, ...]:
    """Tiers of memory beyond DRAM and GPUs."""
    return tuple(_extra(one) for one in tables_of(top, "tier", _EXTRA))


_GPU = ("model", "count", "memory_gib", "memory_gb", "gb_per_s", "tflops", "pcie_gb_per_s", "watts")
_EXTRA = ("kind", "modules", "module_gib", "module_gb", "gib", "gb", "gb_per_s", "detail")


def _gpu(table: Table) -> Gpu:
    size = _size(table, "memory", required=True)
    assert size is not None
    if size < LEAST_BYTES:
        raise table.refuse("memory_gib", "of under 1 MiB holds nothing; correct it")
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
    modules = count(table, "modules", 1024)
    size = _size(table, "module", required=modules is not None)
    if size is not None and modules is None:
        raise table.refuse("modules", "is missing, though the size of a module is given; add it")
    gib, gb = table.positive("gib"), table.positive("gb")
    if gib is not None and gb is not None:
        raise table.refuse("gb", "and gib are both given; leave one out")
    whole = None if gib is None and gb is None else round(gib * GIB if gib is not None else (gb or 0) * GB)
    if modules is not None and size is not None:
        total, detail = modules * size, f"{modules} x {size / GIB:g} GiB"
        if whole is not None and abs(whole - total) > 0.01 * total:
            key = "gib" if gib is not None else "gb"
            raise table.refuse(
                key, f"{gib or gb:g} contradicts {modules} modules of {size / GIB:g} GiB; leave one out"
            )
    elif whole is not None:
        total, detail = whole, f"{whole / GIB:,.0f} GiB"
    else:
        raise table.refuse("gib", "or gb must be given, or modules with module_gib; add it")
    if total < LEAST_BYTES:
        raise table.refuse("kind", f"{kind} of under 1 MiB holds nothing; correct its size")
    return Extra(kind, total, rate and rate * GB, table.optional_text("detail") or detail, modules)


def storage(top: Table) -> Storage | None:
    """The drives of a machine; None where the file has none."""
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

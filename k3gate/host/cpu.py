"""Processors: model, topology from sibling lists, caches, instruction sets, frequency settings."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from attrs import frozen

from k3gate.host import cpulist, parsing, processor, syscalls
from k3gate.host.files import Root
from k3gate.host.notes import Notes
from k3gate.records import Amx, Cache, Cpu, State

CPUS = "sys/devices/system/cpu"
_DIRECTORY = re.compile(r"cpu(\d{1,5})", re.ASCII)
_INDEX = re.compile(r"index\d{1,2}", re.ASCII)
_PLAUSIBLE_HZ = (1e6, 1e11)


@frozen
class Sets:
    """CPU ids by standing. `usable` is online and allowed, or online where nothing is both."""

    present: tuple[int, ...] | None
    possible: tuple[int, ...] | None
    online: tuple[int, ...] | None
    offline: tuple[int, ...]
    allowed: tuple[int, ...] | None
    usable: tuple[int, ...]


def read(root: Root, notes: Notes) -> Cpu:
    """The `Cpu` record of the machine below `root`."""
    sets = cpu_sets(root, notes)
    online = sets.online or ()
    # Facts come from the first CPU that this process can use: CPU 0 may be off or out of bounds.
    first = sets.usable[0] if sets.usable else None
    identity = processor.read(root, notes, first)
    if online:
        notes.seen("cpu.threads", "cpu.online")
    else:
        notes.absent("cpu.threads", "cpu.online", "online CPUs are not known")
    siblings = _siblings(root, notes, online)
    packages = _packages(root, notes, online)
    smt = any(len(group) > 1 for group in siblings) if siblings else None
    if siblings:
        notes.seen("cpu.smt", f"{CPUS}/cpu*/topology/thread_siblings_list")
    else:
        notes.absent("cpu.smt", f"{CPUS}/cpu*/topology", "no sibling lists; SMT is never guessed")
    driver, governor = _scaling(root, notes, sets.usable)
    return Cpu(
        architecture=identity.architecture,
        vendor=identity.vendor,
        model=identity.model,
        family=identity.family,
        model_number=identity.model_number,
        stepping=identity.stepping,
        microcode=identity.microcode or _microcode(root, notes, first),
        sockets=len(set(packages.values())) or None,
        cores=len(siblings) or None,
        threads=len(online) or None,
        smt=smt,
        smt_control=notes.take("cpu.smt_control", root, parsing.words, f"{CPUS}/smt/control"),
        present=sets.present,
        possible=sets.possible,
        online=sets.online,
        offline=sets.offline,
        allowed=sets.allowed,
        siblings=siblings,
        package_of=packages,
        caches=_caches(root, notes, online),
        isa=identity.isa,
        amx=_amx(root, notes, identity),
        governor=governor,
        scaling_driver=driver,
        boost=_boost(root, notes, first),
        max_hz=_maximum(root, notes, first),
    )


def cpu_sets(root: Root, notes: Notes) -> Sets:
    """Which CPUs are possible, present, online, offline and allowed; old kernels lack some of the files."""
    folders = sorted(int(m[1]) for n in root.names(CPUS) if (m := _DIRECTORY.fullmatch(n)))
    folders = [cpu for cpu in folders if cpu < cpulist.LIMIT]
    present = notes.take("cpu.present", root, cpulist.parse, f"{CPUS}/present")
    possible = notes.take("cpu.possible", root, cpulist.parse, f"{CPUS}/possible")
    online = notes.take("cpu.online", root, _some, f"{CPUS}/online")
    if online is None:
        online, source = _online_by_folders(root, folders), f"{CPUS}/cpu*/online and topology"
        if not online:
            online, source = processor.ids(root), "proc/cpuinfo"
        if online:
            notes.seen("cpu.online", source, f"{CPUS}/online is absent")
    if present is None and folders:
        present = tuple(folders)
        notes.seen("cpu.present", f"{CPUS}/cpu*", f"{CPUS}/present is absent; the CPU folders were counted")
    offline: tuple[int, ...] = ()
    if present is not None and online:
        # The kernel's offline file also names CPUs that could be plugged in one day; those are not here.
        offline = tuple(sorted(set(present) - set(online)))
        notes.seen("cpu.offline", f"{CPUS}/present", "present but not online")
    else:
        notes.absent("cpu.offline", f"{CPUS}/present", "present or online CPUs are not known")
    allowed, source, reason = syscalls.affinity(root)
    if allowed:
        notes.seen("cpu.allowed", source)
    elif online:
        allowed = online
        notes.unknown(
            "cpu.allowed",
            State.NOT_PRESENT,
            source,
            f"{reason or 'empty'}; all online CPUs taken",
        )
    else:
        allowed = None
        notes.absent("cpu.allowed", source, reason or "empty")
    usable = tuple(sorted(set(online or ()) & set(allowed or ()))) or online or ()
    return Sets(present, possible, online or None, offline, allowed, usable)


def _some(text: str) -> tuple[int, ...]:
    found = cpulist.parse(text)
    if not found:
        raise ValueError("no CPU is online")
    return found


def _online_by_folders(root: Root, folders: Sequence[int]) -> tuple[int, ...]:
    switched_on = [cpu for cpu in folders if root.line(f"{CPUS}/cpu{cpu}/online") != "0"]
    described = [cpu for cpu in switched_on if root.exists(f"{CPUS}/cpu{cpu}/topology")]
    return tuple(described or switched_on)


def id_list(root: Root, *paths: str) -> tuple[int, ...] | None:
    """Ids from the first readable of `paths`, each a list ("..._list", "cpulist") or else a mask."""
    for path in paths:
        text = root.line(path)
        if not text:
            continue
        try:
            return cpulist.parse(text) if path.endswith("list") else cpulist.parse_mask(text)
        except ValueError:
            continue
    return None


def _siblings(root: Root, notes: Notes, online: Iterable[int]) -> tuple[tuple[int, ...], ...]:
    known = set(online)
    seen: set[int] = set()
    groups: list[tuple[int, ...]] = []
    unknown: list[int] = []
    for cpu in sorted(known):
        if cpu in seen:
            continue
        base = f"{CPUS}/cpu{cpu}/topology"
        group = id_list(
            root,
            f"{base}/core_cpus_list",
            f"{base}/thread_siblings_list",
            f"{base}/core_cpus",
            f"{base}/thread_siblings",
        )
        if group is None or cpu not in group:
            unknown.append(cpu)
            continue
        members = tuple(c for c in group if c in known and c not in seen)
        seen.update(members)
        groups.append(members)
    source = f"{CPUS}/cpu*/topology/thread_siblings_list"
    if not groups:
        notes.absent("cpu.siblings", source, "no sibling lists; cores are not guessed")
        notes.absent("cpu.cores", source, "no sibling lists; cores are not guessed")
        return ()
    reason = f"{len(unknown)} online CPUs without a sibling list are left out" if unknown else None
    notes.seen("cpu.siblings", source, reason)
    notes.seen("cpu.cores", source, reason)
    return tuple(groups)


def _packages(root: Root, notes: Notes, online: Iterable[int]) -> dict[int, int]:
    source = f"{CPUS}/cpu*/topology/physical_package_id"
    packages: dict[int, int] = {}
    for cpu in online:
        text = root.line(f"{CPUS}/cpu{cpu}/topology/physical_package_id")
        try:
            packages[cpu] = parsing.integer(text or "", 0, 2**31 - 1)
        except ValueError:
            continue
    if packages:
        notes.seen("cpu.sockets", source)
        notes.seen("cpu.package_of", source)
    else:
        notes.absent("cpu.sockets", source, "no CPU names its package")
        notes.absent("cpu.package_of", source, "no CPU names its package")
    return packages


def _caches(root: Root, notes: Notes, online: Iterable[int]) -> tuple[Cache, ...]:
    known = set(online)
    found: dict[tuple[int, str, int], list[tuple[int, ...]]] = {}
    covered: set[tuple[int, int, str]] = set()
    faults: list[str] = []
    indexes: dict[int, tuple[str, ...]] = {}
    done: dict[str, set[int]] = {}
    for cpu in sorted(known):
        indexes[cpu] = tuple(n for n in root.names(f"{CPUS}/cpu{cpu}/cache") if _INDEX.fullmatch(n))
        for index in indexes[cpu]:
            # The first CPU of a cache speaks for all that share it.
            if cpu in done.setdefault(index, set()):
                continue
            base = f"{CPUS}/cpu{cpu}/cache/{index}"
            try:
                level = parsing.integer(root.line(f"{base}/level") or "", 1, 5)
                size = parsing.cache_bytes(root.line(f"{base}/size") or "")
            except ValueError as error:
                faults.append(f"cpu{cpu} {index}: {error}")
                continue
            kind = (parsing.words(root.line(f"{base}/type")) or "unknown").lower()
            group = id_list(root, f"{base}/shared_cpu_list", f"{base}/shared_cpu_map")
            if group is None or cpu not in group:
                faults.append(f"cpu{cpu} {index}: no list of the CPUs that share it")
                continue
            members = tuple(c for c in group if c in known)
            done[index].update(members)
            fresh = tuple(c for c in members if (c, level, kind) not in covered)
            if not fresh:
                continue
            covered.update((c, level, kind) for c in fresh)
            found.setdefault((level, kind, size), []).append(fresh)
    source = f"{CPUS}/cpu*/cache/index*"
    if found:
        notes.seen("cpu.caches", source, _few(faults))
    elif faults:
        notes.implausible("cpu.caches", source, _few(faults) or "")
    else:
        notes.absent("cpu.caches", source, "no CPU describes its caches")
    return tuple(
        Cache(level, kind, size, len(groups), max(len(group) for group in groups), tuple(groups))
        for (level, kind, size), groups in sorted(found.items())
    )


def _few(faults: Sequence[str]) -> str | None:
    if not faults:
        return None
    return faults[0] + (f" (and {len(faults) - 1} more)" if len(faults) > 1 else "")


def _amx(root: Root, notes: Notes, identity: processor.Identity) -> Amx:
    flags = identity.flags
    if flags is None:
        for name in ("tile", "int8", "bf16", "granted"):
            notes.absent(f"cpu.amx.{name}", "proc/cpuinfo", "the CPU's flags are not known")
        return Amx()
    for name in ("tile", "int8", "bf16"):
        notes.seen(f"cpu.amx.{name}", "proc/cpuinfo")
    granted: bool | None = None
    if "amx_tile" not in flags:
        notes.absent("cpu.amx.granted", "proc/cpuinfo", "the CPU has no AMX")
    else:
        granted, source, reason = syscalls.amx_granted(root)
        if granted is None:
            state = State.NOT_RUN if source is None else State.FAILED
            notes.unknown("cpu.amx.granted", state, source, reason or "no answer")
        else:
            notes.seen("cpu.amx.granted", source or "", reason)
    return Amx("amx_tile" in flags, "amx_int8" in flags, "amx_bf16" in flags, granted)


def _scaling(root: Root, notes: Notes, usable: Iterable[int]) -> tuple[str | None, str | None]:
    """Driver and governor; several governors are joined by a comma."""
    words: Mapping[str, set[str]] = {"scaling_driver": set(), "scaling_governor": set()}
    for cpu in usable:
        base = f"{CPUS}/cpu{cpu}/cpufreq"
        if not root.exists(base):
            continue
        for name, values in words.items():
            word = parsing.words(root.line(f"{base}/{name}"))
            if word:
                values.add(word[:40])
    found: list[str | None] = []
    for field, name in (("cpu.scaling_driver", "scaling_driver"), ("cpu.governor", "scaling_governor")):
        source = f"{CPUS}/cpu*/cpufreq/{name}"
        if words[name]:
            notes.seen(field, source)
        else:
            notes.absent(field, source, "the kernel shows no frequency control (usual in a VM)")
        found.append(", ".join(sorted(words[name])[:8]) or None)
    return found[0], found[1]


def _microcode(root: Root, notes: Notes, first: int | None) -> str | None:
    """From sysfs, for kernels that leave it out of cpuinfo; other architectures have none."""
    source = f"{CPUS}/cpu{first}/microcode/version"
    text = parsing.words(root.line(source)) if first is not None else None
    if text is None:
        return None
    notes.seen("cpu.microcode", source)
    return text[:40]


def _boost(root: Root, notes: Notes, first: int | None) -> bool | None:
    """Whether the processor may clock above its base rate: one switch for all CPUs, or that of the first."""
    no_turbo = f"{CPUS}/intel_pstate/no_turbo"
    own = f"{CPUS}/cpu{first}/cpufreq"
    for source in (no_turbo, f"{CPUS}/cpufreq/boost", f"{own}/boost", f"{own}/cpb"):
        reading = root.read(source)
        if reading.state is State.NOT_PRESENT:
            continue
        on = notes.parse("cpu.boost", reading, parsing.switch)
        return (not on) if source == no_turbo and on is not None else on
    notes.absent(
        "cpu.boost",
        f"{CPUS}/cpufreq/boost",
        "neither intel_pstate nor cpufreq shows a switch for it (usual in a VM)",
    )
    return None


def _maximum(root: Root, notes: Notes, first: int | None) -> float | None:
    if first is None:
        notes.absent("cpu.max_hz", CPUS, "no usable CPU")
        return None
    return notes.take("cpu.max_hz", root, _hertz, f"{CPUS}/cpu{first}/cpufreq/cpuinfo_max_freq")


def _hertz(text: str) -> float:
    value = parsing.decimal(text) * 1000
    if not _PLAUSIBLE_HZ[0] <= value <= _PLAUSIBLE_HZ[1]:
        raise ValueError(f"no CPU runs at {text.strip()[:40]} kHz")
    return value

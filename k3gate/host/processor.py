"""proc/cpuinfo: who made the processor, what it is called, what it can do. Taken from one usable CPU."""

from __future__ import annotations

import re
from functools import lru_cache

from attrs import frozen

from k3gate.host import cpulist, parsing
from k3gate.host.files import LARGE, SMALL, Root
from k3gate.host.notes import Notes
from k3gate.records import State

CPUINFO = "proc/cpuinfo"

# Of the many flags those that bear on kernels of matrix and vector code, copying and page sizes. Names mean
# other things elsewhere: "sme" is matrix code on Arm and encrypted memory on AMD.
_X86 = re.compile(
    r"avx.*|amx.*|sse.*|ssse3|fma|fma4|f16c|bmi[12]|movbe|popcnt|aes|vaes|vpclmulqdq|gfni|movdiri|movdir64b"
    r"|clwb|clflushopt|cldemote|erms|fsrm|fzrm|fsrs|pdpe1gb|sha_ni|prefetchi?|serialize|wbnoinvd"
)
_ARM = re.compile(
    r"fp|fphp|asimd.*|sve.*|sme.*|i8mm|bf16|ebf16|f8.*|faminmax|aes|pmull|atomics|fcma|frint|dgh|lrcpc|dcpop"
)
_OTHER = re.compile(r"lasx|lsx")
# The names by which compilers and this field know them.
_RENAMED = {
    "pni": "sse3",
    "abm": "lzcnt",
    "avx512vbmi": "avx512_vbmi",
    "avx512ifma": "avx512_ifma",
    "asimddp": "dotprod",
    "asimdhp": "fp16",
    "asimdfhm": "fp16fml",
}
# Arm parts, by implementer and part number (MIDR), as the Linux kernel and lscpu name them.
_ARM_MAKERS = {0x41: "Arm", 0x46: "Fujitsu", 0x48: "HiSilicon", 0x4E: "NVIDIA", 0xC0: "Ampere"}
_ARM_PARTS = {
    (0x41, 0xD0C): "Neoverse-N1",
    (0x41, 0xD40): "Neoverse-V1",
    (0x41, 0xD49): "Neoverse-N2",
    (0x41, 0xD4F): "Neoverse-V2",
    (0x41, 0xD84): "Neoverse-V3",
    (0x41, 0xD8E): "Neoverse-N3",
    (0x46, 0x001): "A64FX",
    (0x48, 0xD01): "TaiShan v110",
    (0xC0, 0xAC3): "Ampere-1",
    (0xC0, 0xAC4): "Ampere-1a",
}


@frozen
class Identity:
    """What cpuinfo says of one CPU. `flags` None: not known, as opposed to none."""

    architecture: str | None = None
    vendor: str | None = None
    model: str | None = None
    family: int | None = None
    model_number: int | None = None
    stepping: int | None = None
    microcode: str | None = None
    isa: tuple[str, ...] = ()
    flags: frozenset[str] | None = None


def read(root: Root, notes: Notes, cpu: int | None) -> Identity:
    """The block of `cpu`, or of the first CPU named where `cpu` has none."""
    reading = root.read(CPUINFO, SMALL, head=True)
    block = _block(reading.text or "", cpu)
    if reading.text is not None and len(reading.text) > SMALL // 2 and not _names(block, cpu):
        reading = root.read(CPUINFO, LARGE, head=True)
        block = _block(reading.text or "", cpu)
    text = root.line("proc/sys/kernel/arch")
    architecture = parsing.words(text) or _architecture(block)
    if architecture:
        notes.seen("cpu.architecture", "proc/sys/kernel/arch" if text else CPUINFO)
    else:
        notes.absent("cpu.architecture", "proc/sys/kernel/arch")
    if not block:
        reason = reading.reason or "implausible: it describes no CPU"
        state = State.FAILED if reading.state is State.OK else reading.state
        for name in ("vendor", "model", "family", "model_number", "stepping", "microcode", "isa"):
            notes.unknown(f"cpu.{name}", state, CPUINFO, reason)
        return Identity(architecture=architecture)
    flags = _flags(block)
    if flags is None:
        notes.absent("cpu.isa", CPUINFO, "no flags line")
    else:
        notes.seen("cpu.isa", CPUINFO)
    return Identity(
        architecture=architecture,
        vendor=_word(notes, "cpu.vendor", block, "vendor_id", "vendor") or _arm_vendor(notes, block),
        model=_model(notes, block),
        family=_number(notes, "cpu.family", block, "cpu family", "family"),
        model_number=_number(notes, "cpu.model_number", block, "model"),
        stepping=_number(notes, "cpu.stepping", block, "stepping", "revision", "CPU revision"),
        microcode=_word(notes, "cpu.microcode", block, "microcode"),
        isa=_isa(block, flags),
        flags=flags,
    )


def ids(root: Root) -> tuple[int, ...]:
    """The CPUs that cpuinfo names, for roots without sys/devices/system/cpu."""
    text = root.read(CPUINFO, LARGE, head=True).text or ""
    numbers = {int(n) for n in re.findall(r"^processor\s*:\s*(\d{1,5})\s*$", text, re.ASCII | re.MULTILINE)}
    return tuple(sorted(n for n in numbers if n < cpulist.LIMIT))


def hypervisor_flag(root: Root) -> bool | None:
    """Whether the CPU says that it runs under a hypervisor; None off x86 and where no flags are shown."""
    block = _block(root.read(CPUINFO, SMALL, head=True).text or "", None)
    if "flags" not in block or "vendor_id" not in block:
        return None
    return "hypervisor" in block["flags"].split()


@lru_cache(maxsize=4)
def _block(text: str, cpu: int | None) -> dict[str, str]:
    fallback: dict[str, str] = {}
    for part in re.split(r"\n[ \t]*\n", text):
        fields: dict[str, str] = {}
        for line in part.splitlines()[:200]:
            name, colon, value = line.partition(":")
            if colon:
                fields.setdefault(name.strip()[:60], value.strip()[:16_384])
        if _names(fields, cpu):
            return fields
        # Some kernels describe the processor in a block of its own, before or after the CPUs.
        fallback = fallback or (fields if len(fields) > 1 else {})
    return fallback


def _names(fields: dict[str, str], cpu: int | None) -> bool:
    return bool(fields) and (cpu is None or fields.get("processor") == str(cpu)) and len(fields) > 1


def _flags(block: dict[str, str]) -> frozenset[str] | None:
    text = block.get("flags", block.get("Features"))
    return None if text is None else frozenset(text.lower().split()[:1000])


def _isa(block: dict[str, str], flags: frozenset[str] | None) -> tuple[str, ...]:
    """The instruction sets among the flags, by the names that the field uses."""
    kept = (_X86 if "flags" in block else _ARM if "CPU implementer" in block else _OTHER).fullmatch
    return tuple(sorted({_RENAMED.get(flag, flag) for flag in flags or () if kept(flag) or flag in _RENAMED}))


def _word(notes: Notes, field: str, block: dict[str, str], *names: str) -> str | None:
    for name in names:
        value = parsing.words(block.get(name))
        if value:
            notes.seen(field, CPUINFO)
            return value[:200]
    notes.absent(field, CPUINFO, f"no line {names[0]!r}")
    return None


def _number(notes: Notes, field: str, block: dict[str, str], *names: str) -> int | None:
    for name in names:
        try:
            value = parsing.integer(block.get(name, ""), 0, 2**31 - 1)
        except ValueError:
            continue
        notes.seen(field, CPUINFO)
        return value
    notes.absent(field, CPUINFO, f"no number in a line {names[0]!r}")
    return None


def _arm(block: dict[str, str]) -> tuple[int, int] | None:
    try:
        return int(block["CPU implementer"], 16), int(block["CPU part"], 16)
    except (KeyError, ValueError):
        return None


def _arm_vendor(notes: Notes, block: dict[str, str]) -> str | None:
    arm = _arm(block)
    maker = _ARM_MAKERS.get(arm[0]) if arm else None
    if maker:
        notes.seen("cpu.vendor", CPUINFO, "from the implementer number")
    return maker


def _model(notes: Notes, block: dict[str, str]) -> str | None:
    named = _word(notes, "cpu.model", block, "model name", "cpu model", "cpu", "Processor")
    arm = _arm(block)
    if named or arm is None:
        return named
    notes.seen("cpu.model", CPUINFO, "from the implementer and part numbers")
    maker = _ARM_MAKERS.get(arm[0], "Arm-compatible")
    return f"{maker} {_ARM_PARTS.get(arm, 'core')} (implementer {arm[0]:#x}, part {arm[1]:#x})"


def _architecture(block: dict[str, str]) -> str | None:
    if block.get("arch") == "IA-64":
        return "ia64"
    if "CPU implementer" in block:
        return "aarch64" if block.get("CPU architecture") in ("8", "9", "AArch64") else "arm"
    if block.get("cpu", "").startswith("POWER"):
        return "ppc64le"
    if "vendor_id" in block and "flags" in block:
        return "x86_64" if "lm" in block["flags"].split() else "i686"
    return None

"""Whether this is a machine of its own: hypervisor, container, Windows subsystem for Linux."""

from __future__ import annotations

import os
import re

from attrs import frozen

from k3gate.host import kernel, parsing, processor
from k3gate.host.files import LARGE, Reading, Root
from k3gate.host.firmware import Firmware
from k3gate.host.limits import MOUNTS
from k3gate.host.notes import Notes, Reason
from k3gate.records import State

_FIRST_PROCESS = "proc/1/cgroup"
_NAMESPACES = "proc/self/ns"
_CLOUD = "KVM"
"""What the guests of clouds are taken to run under."""
# Marks in the firmware's vendor and product strings, first match counts. Clouds also rent whole machines
# under the same vendor; those say "metal" and are left to the CPU's own flag.
_FIRMWARE_MARKS = (
    (r"vmware", "VMware"),
    (r"innotek|virtualbox", "VirtualBox"),
    (r"microsoft corporation.*virtual machine", "Hyper-V"),
    (r"\bxen\b|hvm domu", "Xen"),
    (r"parallels", "Parallels"),
    (r"bhyve", "bhyve"),
    # Nutanix also sells the machines.
    (r"nutanix.*\bahv\b", "Nutanix AHV"),
    (
        r"google compute engine|amazon ec2|alibaba cloud ecs|openstack|droplet|vserver"
        r"|tencent cloud|\bcvm\b|vultr|upcloud|akamai|linode|exoscale",
        _CLOUD,
    ),
    (r"\bqemu\b|\bkvm\b|bochs|red hat.*kvm|standard pc", "QEMU or KVM"),
)
_WHOLE_MACHINE = re.compile(r"\bmetal\b|bare.?metal")
# The kernel adds which of Hyper-V's clocks it is: hyperv_clocksource_tsc_page.
_CLOCKS = ((r"kvm-clock", "KVM"), (r"hyperv_clocksource\w*", "Hyper-V"), (r"xen", "Xen"))
_CONTAINER_MARKS = (
    ("kubepods", "kubernetes"),
    ("libpod", "podman"),
    ("docker", "docker"),
    ("containerd", "containerd"),
    ("lxc", "lxc"),
    ("garden", "garden"),
)


# The kernel numbers its first namespaces alike on every machine, and has since Linux 3.8.
_FIRST_NAMESPACES = {"pid": "pid:[4026531836]", "cgroup": "cgroup:[4026531835]"}
_LAYERED = frozenset({"overlay", "aufs", "fuse-overlayfs", "fuse.fuse-overlayfs", "unionfs"})


@frozen
class Surroundings:
    """`virtual` and `wsl` None: not known. `container` None: none seen, or not known, as its provenance says."""

    virtual: bool | None
    hypervisor: str | None
    container: str | None
    wsl: bool | None


@frozen
class _Sign:
    """What tells whether this is a guest, and where it stands; `name` of the hypervisor."""

    virtual: bool
    source: str
    name: str | None = None
    reason: str | None = None


def read(root: Root, notes: Notes, strings: str, firmware: Firmware) -> Surroundings:
    """`strings`: vendor, product and board in one line, empty where they are not known."""
    wsl = _wsl(root, notes)
    sign = _sign(root, strings, firmware, wsl=wsl is True)
    if sign is None:
        why = _no_sign(firmware)
        reason = f"nothing tells a guest from a machine of its own: no CPU flag is shown, and {why.text}"
        for field in ("virtual", "hypervisor"):
            notes.unknown(f"machine.{field}", why.state, f"proc/cpuinfo; {firmware.source}", reason)
        return Surroundings(None, None, _container(root, notes), wsl)
    notes.seen("machine.virtual", sign.source, sign.reason)
    if sign.name or not sign.virtual:
        notes.seen("machine.hypervisor", sign.source, None if sign.virtual else "no sign of one")
    else:
        notes.absent("machine.hypervisor", sign.source, "there is a hypervisor, which does not tell its name")
    return Surroundings(sign.virtual, sign.name, _container(root, notes), wsl)


def _sign(root: Root, strings: str, firmware: Firmware, *, wsl: bool) -> _Sign | None:
    """The first sign that decides. Without a CPU flag for it, as on ARM, only the firmware's table can say no."""
    name, source = _hypervisor(root, strings)
    flag = processor.hypervisor_flag(root)
    if wsl:
        return _Sign(True, source or "kernel.release", name or "Hyper-V")
    if flag:
        return _Sign(True, "proc/cpuinfo (hypervisor flag)", name)
    if name:
        return _Sign(True, source or "", name)
    bios = firmware.table.bios if firmware.table is not None else None
    if bios is not None and bios.virtual_machine:
        return _Sign(
            True, firmware.source, None, "the firmware says that its table describes a virtual machine"
        )
    if flag is False:
        return _Sign(False, "proc/cpuinfo; sys/class/dmi/id", None, "no hypervisor flag, no sign of one")
    if _cloud(strings) and _WHOLE_MACHINE.search(strings.lower()):
        return _Sign(False, "sys/class/dmi/id", None, "the cloud's firmware names a whole machine")
    if bios is not None and bios.virtual_machine is False and _real_modules(firmware):
        return _Sign(
            False,
            firmware.source,
            None,
            "type 0 does not call it a virtual machine, and types 16 and 17 name real memory modules",
        )
    return None


def _no_sign(firmware: Firmware) -> Reason:
    """Why the firmware's table does not decide it."""
    if firmware.table is None:
        return firmware.missing or Reason(State.NOT_PRESENT, "the machine shows no firmware table")
    bios = firmware.table.bios
    if bios is None or bios.virtual_machine is None:
        return Reason(State.NOT_PRESENT, "the firmware's table does not tell either")
    return Reason(State.NOT_PRESENT, "the firmware's table does not name real memory modules")


def _real_modules(firmware: Firmware) -> bool:
    """Whether the table names modules as only real ones are: each with a part, a maker and a rate."""
    if firmware.table is None or not firmware.table.arrays:
        return False
    from k3gate.host import dimms

    found = dimms.summarize(firmware.table.devices, firmware.table.arrays)
    there = [one for one in found.dimms or () if one.populated]
    return bool(there) and all(
        one.part_number and one.manufacturer and (one.rated_mts or one.configured_mts) for one in there
    )


def _wsl(root: Root, notes: Notes) -> bool | None:
    # The release alone: the rest of proc/version names who built the kernel.
    release, source = kernel.release(root)
    if release is None:
        notes.absent("machine.wsl", source, "the kernel's release is not known")
        return None
    notes.seen("machine.wsl", source)
    return "microsoft" in release.lower()


def _cloud(strings: str) -> bool:
    return any(name == _CLOUD and re.search(pattern, strings.lower()) for pattern, name in _FIRMWARE_MARKS)


def _hypervisor(root: Root, firmware: str) -> tuple[str | None, str | None]:
    kind = parsing.words(root.line("sys/hypervisor/type"))
    if kind:
        return ("Xen" if kind == "xen" else kind[:40]), "sys/hypervisor/type"
    strings = firmware.lower()
    whole = _WHOLE_MACHINE.search(strings)
    for pattern, name in _FIRMWARE_MARKS:
        if re.search(pattern, strings) and not (whole and name == _CLOUD):
            return name, "sys/class/dmi/id"
    if root.exists("sys/firmware/devicetree/base/hypervisor"):
        return "KVM", "sys/firmware/devicetree/base/hypervisor"
    clocks = (root.line("sys/devices/system/clocksource/clocksource0/available_clocksource") or "").split()
    for pattern, name in _CLOCKS:
        if any(re.fullmatch(pattern, clock) for clock in clocks):
            return name, "sys/devices/system/clocksource"
    return None, None


def _container(root: Root, notes: Notes) -> str | None:
    """Several marks may be there; the first that names a kind counts."""
    if root.live and "KUBERNETES_SERVICE_HOST" in os.environ:
        notes.seen("machine.container", "environment")
        return "kubernetes"
    for source, kind in ((".dockerenv", "docker"), ("run/.containerenv", "podman")):
        if root.exists(source):
            notes.seen("machine.container", source)
            return kind
    named = parsing.words(root.line("run/systemd/container"))
    if named:
        notes.seen("machine.container", "run/systemd/container")
        return named[:40]
    reading = root.read(_FIRST_PROCESS)
    for mark, kind in _CONTAINER_MARKS:
        if mark in (reading.text or ""):
            notes.seen("machine.container", _FIRST_PROCESS)
            return kind
    _no_container(root, notes, reading)
    return None


def _no_container(root: Root, notes: Notes, first: Reading) -> None:
    """Notes whether there is none, or it is not known: a container need not leave any of the marks.

    One in a control group namespace has the path "/", as the first process has on some machines.
    """
    field = "machine.container"
    spaces = {kind: _namespace(root, kind) for kind in _FIRST_NAMESPACES}
    other = [kind for kind, space in spaces.items() if space not in (None, _FIRST_NAMESPACES[kind])]
    source = f"{_FIRST_PROCESS}; run; .dockerenv; {_NAMESPACES}"
    if other:
        words = " and ".join(f"{kind} namespace" for kind in other)
        notes.unknown(
            field, State.NOT_PRESENT, source, f"no mark of one, but a {words} apart from the machine's"
        )
    elif spaces["pid"]:
        notes.seen(field, source, "no sign of one; the process is in the machine's own namespaces")
    elif first.text is None:
        notes.unknown(field, first.state, _FIRST_PROCESS, first.reason or "unreadable")
    elif (layers := _root_type(root)) in _LAYERED:
        notes.unknown(field, State.NOT_PRESENT, source, f"no mark of one, but the root is of kind {layers}")
    elif layers is None and all(line.rpartition(":")[2] == "/" for line in first.text.splitlines()):
        notes.unknown(field, State.NOT_PRESENT, source, "no mark of one, and nothing that rules one out")
    else:
        notes.seen(field, source, "no sign of one")


def _namespace(root: Root, kind: str) -> str | None:
    """The number of this process's namespace, as the kernel writes it; None where it is not shown."""
    try:
        # A capture in which "self" is a link leads elsewhere.
        if not root.live and root.link("proc/self") is not None:
            return None
        return root.link(f"{_NAMESPACES}/{kind}")
    except OSError:
        return None


def _root_type(root: Root) -> str | None:
    """The kind of file system at "/"; where several are mounted the last counts."""
    found = None
    for line in (root.read(MOUNTS, LARGE, head=True).text or "").splitlines()[:20_000]:
        before, _, after = line.partition(" - ")
        if before.split()[4:5] == ["/"] and after:
            found = after.split()[0]
    return found

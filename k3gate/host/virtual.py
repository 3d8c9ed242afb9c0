"""Whether this is a machine of its own: hypervisor, container, Windows subsystem for Linux."""

from __future__ import annotations

import os
import re

from attrs import frozen

from k3gate.host import parsing, processor
from k3gate.host.files import Root
from k3gate.host.notes import Notes
from k3gate.records import State

# Marks in the firmware's vendor and product strings, first match counts. Clouds also rent whole machines
# under the same vendor; those say "metal" and are left to the CPU's own flag.
_FIRMWARE_MARKS = (
    (r"vmware", "VMware"),
    (r"innotek|virtualbox", "VirtualBox"),
    (r"microsoft corporation.*virtual machine", "Hyper-V"),
    (r"\bxen\b|hvm domu", "Xen"),
    (r"parallels", "Parallels"),
    (r"bhyve", "bhyve"),
    (r"nutanix", "Nutanix AHV"),
    (
        r"google compute engine|amazon ec2|alibaba cloud ecs|openstack|droplet|vserver"
        r"|tencent cloud|\bcvm\b|vultr|upcloud|akamai|linode|exoscale",
        "KVM",
    ),
    (r"\bqemu\b|\bkvm\b|bochs|red hat.*kvm|standard pc", "QEMU or KVM"),
)
_WHOLE_MACHINE = re.compile(r"\bmetal\b|bare.?metal")
_CLOCKS = (("kvm-clock", "KVM"), ("hyperv_clocksource", "Hyper-V"), ("xen", "Xen"))
_CONTAINER_MARKS = (
    ("kubepods", "kubernetes"),
    ("libpod", "podman"),
    ("docker", "docker"),
    ("containerd", "containerd"),
    ("lxc", "lxc"),
    ("garden", "garden"),
)


@frozen
class Surroundings:
    """`virtual` and `wsl` None: not known. `container` None: none seen."""

    virtual: bool | None
    hypervisor: str | None
    container: str | None
    wsl: bool | None


def read(root: Root, notes: Notes, firmware: str) -> Surroundings:
    """`firmware`: vendor, product and board strings in one line, empty where they are not known."""
    wsl = _wsl(root, notes)
    name, source = _hypervisor(root, firmware)
    flag = processor.hypervisor_flag(root)
    virtual: bool | None
    if wsl:
        virtual, name, source = True, name or "Hyper-V", source or "proc/version"
    elif flag or name:
        virtual, source = True, "proc/cpuinfo (hypervisor flag)" if flag else source
    elif flag is None and not firmware:
        virtual = None
    else:
        virtual = False
    if virtual is None:
        notes.absent("machine.virtual", "proc/cpuinfo", "neither CPU flags nor firmware strings are known")
        notes.absent("machine.hypervisor", "proc/cpuinfo", "neither CPU flags nor firmware strings are known")
    else:
        notes.seen("machine.virtual", source or "proc/cpuinfo; sys/class/dmi/id")
        if name or not virtual:
            notes.seen("machine.hypervisor", source or "proc/cpuinfo", None if virtual else "no sign of one")
        else:
            notes.absent("machine.hypervisor", source, "there is a hypervisor, which does not tell its name")
    return Surroundings(virtual, name, _container(root, notes), wsl)


def _wsl(root: Root, notes: Notes) -> bool | None:
    for source in ("proc/version", "proc/sys/kernel/osrelease"):
        reading = root.read(source)
        if reading.text is not None:
            notes.seen("machine.wsl", source)
            return "microsoft" in reading.text.lower()
    notes.absent("machine.wsl", "proc/version")
    return None


def _hypervisor(root: Root, firmware: str) -> tuple[str | None, str | None]:
    kind = parsing.words(root.line("sys/hypervisor/type"))
    if kind:
        return ("Xen" if kind == "xen" else kind[:40]), "sys/hypervisor/type"
    strings = firmware.lower()
    whole = _WHOLE_MACHINE.search(strings)
    for pattern, name in _FIRMWARE_MARKS:
        if re.search(pattern, strings) and not (whole and name == "KVM"):
            return name, "sys/class/dmi/id"
    if root.exists("sys/firmware/devicetree/base/hypervisor"):
        return "KVM", "sys/firmware/devicetree/base/hypervisor"
    clocks = (root.line("sys/devices/system/clocksource/clocksource0/available_clocksource") or "").split()
    for clock, name in _CLOCKS:
        if clock in clocks:
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
    reading = root.read("proc/1/cgroup")
    for mark, kind in _CONTAINER_MARKS:
        if mark in (reading.text or ""):
            notes.seen("machine.container", "proc/1/cgroup")
            return kind
    if reading.text is None:
        notes.unknown("machine.container", reading.state, "proc/1/cgroup", reading.reason or "unreadable")
    else:
        notes.unknown("machine.container", State.OK, "proc/1/cgroup; run; .dockerenv", "no sign of one")
    return None

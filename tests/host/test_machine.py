"""Which machine, what surrounds it, its kernel; and nothing that names the one piece of hardware."""

from __future__ import annotations

import platform
from pathlib import Path
from typing import Any

import pytest

from k3gate import documents, host
from k3gate.host import capture, text
from k3gate.records import State
from tests.host.pci_drawings import GPU, INTEL, NIC, NVIDIA, put_device

MakeRoot = Any
DMI = "sys/class/dmi/id"
CLOCK = "sys/devices/system/clocksource/clocksource0/available_clocksource"
FIRST_PID, FIRST_CGROUP = "pid:[4026531836]", "cgroup:[4026531835]"
MACHINE_ID = "0123456789abcdef0123456789abcdef"


def test_strings_of_board_and_firmware_without_serials(make_root: MakeRoot) -> None:
    files = {
        f"{DMI}/sys_vendor": "Supermicro\n",
        f"{DMI}/product_name": "SYS-221H-TNR\n",
        f"{DMI}/board_vendor": "Supermicro\n",
        f"{DMI}/board_name": "X13DEM\n",
        f"{DMI}/bios_version": "2.1\n",
        f"{DMI}/bios_date": "01/15/2024\n",
        f"{DMI}/product_serial": "S3CRET1\n",
        f"{DMI}/board_serial": "S3CRET2\n",
        f"{DMI}/product_uuid": "5ec2e700-0000-0000-0000-000000000000\n",
        f"{DMI}/chassis_asset_tag": "S3CRET3\n",
        "proc/sys/kernel/hostname": "S3CRET4\n",
        "etc/hostname": "S3CRET5\n",
        "etc/machine-id": f"{MACHINE_ID}\n",
        "proc/version": "Linux version 6.8.0-45-generic (builder@S3CRET6) (gcc 13) #1 SMP\n",
        "proc/cmdline": "BOOT_IMAGE=/vmlinuz root=UUID=5ec2e700-aaaa-bbbb-cccc-000000000000 ro quiet "
        "ip=10.1.2.3::10.1.2.1:255.255.255.0:S3CRET7:eth0 systemd.hostname=S3CRET8 "
        "BOOTIF=01-aa-bb-cc-dd-ee-ff hugepagesz=1G isolcpus=2-3\n",
    }
    inventory = host.read(make_root(files), name="left box")
    machine = inventory.machine
    assert (machine.vendor, machine.product, machine.board) == (
        "Supermicro",
        "SYS-221H-TNR",
        "Supermicro X13DEM",
    )
    assert machine.firmware["version"] == "2.1"
    assert machine.virtual is False
    assert machine.name == "left box"
    assert inventory.kernel.release == "6.8.0-45-generic"
    everything = documents.canonical(host.document(inventory)) + text.page(inventory)
    for secret in ("S3CRET", "5ec2e700", MACHINE_ID, "10.1.2.3", "dd-ee-ff"):
        assert secret not in everything
    assert "hugepagesz=1G isolcpus=2-3" in (inventory.kernel.command_line or "")


def test_the_live_inventory_has_no_host_name() -> None:
    name = platform.node()
    inventory = host.read()
    words = documents.canonical(host.document(inventory)).replace('"', " ").split()
    assert name not in words


def test_machine_id_is_a_steady_salted_hash(make_root: MakeRoot) -> None:
    root = make_root({"etc/machine-id": f"{MACHINE_ID}\n"})
    first = host.read(root).machine.id
    assert first == host.read(root).machine.id
    assert first is not None
    assert MACHINE_ID not in first
    make_root.put(root, {"etc/machine-id": "f" * 32 + "\n"})
    assert host.read(root).machine.id != first


@pytest.mark.parametrize("content", ["", "uninitialized\n", "0" * 32, "xyz"])
def test_a_machine_without_an_id_has_none(make_root: MakeRoot, content: str) -> None:
    inventory = host.read(make_root({"etc/machine-id": content}))
    assert inventory.machine.id is None
    assert inventory.provenance["machine.id"].state is State.FAILED


def test_the_fingerprint_tells_machines_apart_and_not_boots(make_root: MakeRoot) -> None:
    root = make_root(make_root.meminfo(63.1), {"etc/machine-id": f"{MACHINE_ID}\n"})
    first = host.read(root, name="a").machine.fingerprint
    # Another boot: a little more is reserved, another id, other load, another name.
    make_root.put(
        root, make_root.meminfo(62.9) | {"etc/machine-id": "f" * 32, "proc/loadavg": "9 9 9 1/2 3\n"}
    )
    assert host.read(root, name="b").machine.fingerprint == first
    make_root.put(root, make_root.meminfo(31.2))
    assert host.read(root).machine.fingerprint != first


def test_gpus_and_what_their_links_can_are_of_the_fingerprint_and_what_they_do_now_is_not(
    make_root: MakeRoot, tmp_path: Path
) -> None:
    def fingerprint(name: str, *places: str, **changes: Any) -> str | None:
        root = tmp_path / name
        make_root.put(root, make_root.meminfo(63.1))
        for place in places:
            told = {"code": GPU, "vendor": NVIDIA, "now": (2.5, 16), "best": (32.0, 16), **changes}
            put_device(root, f"pci0000:00/{place}", **told)
        put_device(root, "pci0000:00/0000:00:1f.0", code=NIC, vendor=INTEL, now=(8.0, 4), best=(8.0, 4))
        return host.read(root).machine.fingerprint

    first = fingerprint("a", "0000:41:00.0")
    assert fingerprint("b", "0000:42:00.0", now=(32.0, 8), driver="nvidia") == first
    assert fingerprint("c", "0000:41:00.0", best=(16.0, 16)) != first
    assert fingerprint("d", "0000:41:00.0", "0000:81:00.0") != first
    assert fingerprint("e", "0000:41:00.0", device=0x9999) != first
    assert fingerprint("f") != first


@pytest.mark.case("STO-11")
def test_sto_11_bytes_that_are_not_utf8_become_visible_escapes(make_root: MakeRoot) -> None:
    """STO-11: a board name of ff bytes, a product with a stray byte and a NUL; JSON stays valid."""
    files = {
        f"{DMI}/board_name": b"\xff\xff\xff\xff\xff\xff\n",
        f"{DMI}/product_name": b"H8G4a\x92 Gr\xc3\xb6\xc3\x9fe\x00x\n",
    }
    inventory = host.read(make_root(files), name="büro")
    assert inventory.machine.board == r"\xff" * 6
    assert inventory.machine.product == r"H8G4a\x92 Größe\x00x"
    assert inventory.machine.name == "büro"
    documents.canonical(host.document(inventory)).encode("utf-8")
    assert r"board             \xff\xff" in text.page(inventory)


def test_firmware_placeholders_are_unknown(make_root: MakeRoot) -> None:
    inventory = host.read(make_root({f"{DMI}/product_name": "To Be Filled By O.E.M.\n"}))
    assert inventory.machine.product is None
    assert "placeholder" in (inventory.provenance["machine.product"].reason or "")


@pytest.mark.parametrize(
    ("files", "hypervisor"),
    [
        (
            {f"{DMI}/sys_vendor": "QEMU\n", f"{DMI}/product_name": "Standard PC (Q35 + ICH9, 2009)\n"},
            "QEMU or KVM",
        ),
        ({f"{DMI}/sys_vendor": "VMware, Inc.\n"}, "VMware"),
        (
            {f"{DMI}/sys_vendor": "Microsoft Corporation\n", f"{DMI}/product_name": "Virtual Machine\n"},
            "Hyper-V",
        ),
        ({f"{DMI}/sys_vendor": "Amazon EC2\n", f"{DMI}/product_name": "m6a.4xlarge\n"}, "KVM"),
        ({"sys/hypervisor/type": "xen\n"}, "Xen"),
        ({"proc/version": "Linux version 5.15.90.1-microsoft-standard-WSL2 (x) #1\n"}, "Hyper-V"),
        ({f"{DMI}/sys_vendor": "Nutanix\n", f"{DMI}/product_name": "AHV\n"}, "Nutanix AHV"),
        ({f"{CLOCK}": "tsc hyperv_clocksource_tsc_page acpi_pm\n"}, "Hyper-V"),
        ({f"{CLOCK}": "kvm-clock tsc\n"}, "KVM"),
    ],
)
def test_virtual_machines(make_root: MakeRoot, files: dict[str, str], hypervisor: str) -> None:
    inventory = host.read(make_root(files))
    assert (inventory.machine.virtual, inventory.machine.hypervisor) == (True, hypervisor)
    assert inventory.findings[0].code == "virtual_machine"
    assert inventory.machine.wsl is (True if "proc/version" in files else None)


@pytest.mark.parametrize(
    "files",
    [
        {f"{DMI}/sys_vendor": "Amazon EC2\n", f"{DMI}/product_name": "m6a.metal\n"},
        {f"{DMI}/sys_vendor": "Alibaba Cloud ECS\n", f"{DMI}/product_name": "BareMetal.r7\n"},
        {f"{DMI}/sys_vendor": "Nutanix\n", f"{DMI}/product_name": "NX-8155-G8\n"},
        {"proc/version": "Linux version 6.8.0-45-generic (root@build.corp.microsoft.com) #1 SMP\n"},
        {"proc/sys/kernel/osrelease": "6.8.0-45\n", "proc/version": "Linux version 6.8.0-45-microsoft (x)\n"},
        {f"{CLOCK}": "tsc hpet acpi_pm\n"},
        {f"{DMI}/sys_vendor": "Microsoft Corporation\n", f"{DMI}/product_name": "Surface Laptop\n"},
        {},
    ],
)
def test_real_machines(make_root: MakeRoot, files: dict[str, str]) -> None:
    machine = host.read(make_root(files)).machine
    assert (machine.virtual, machine.hypervisor) == (False, None)
    assert machine.wsl is not True


def test_a_hypervisor_without_a_name(make_root: MakeRoot) -> None:
    inventory = host.read(make_root({"proc/cpuinfo": make_root.cpuinfo(range(8), "lm hypervisor")}))
    assert (inventory.machine.virtual, inventory.machine.hypervisor) == (True, None)
    assert "does not tell" in (inventory.provenance["machine.hypervisor"].reason or "")


def test_without_flags_and_firmware_virtual_is_unknown(make_root: MakeRoot) -> None:
    root = make_root({"proc/cpuinfo": None})
    assert host.read(root).machine.virtual is None


@pytest.mark.parametrize(
    ("files", "container"),
    [
        ({".dockerenv": ""}, "docker"),
        ({"run/.containerenv": ""}, "podman"),
        ({"run/systemd/container": "systemd-nspawn\n"}, "systemd-nspawn"),
        ({"proc/1/cgroup": "11:memory:/kubepods/burstable/pod1\n"}, "kubernetes"),
        ({"proc/1/cgroup": "0::/init.scope\n"}, None),
    ],
)
def test_containers(make_root: MakeRoot, files: dict[str, str], container: str | None) -> None:
    inventory = host.read(make_root(files))
    assert inventory.machine.container == container
    assert inventory.provenance["machine.container"].state is State.OK
    assert ("container" in {f.code for f in inventory.findings}) is (container is not None)


def mounted(kind: str) -> str:
    return f"22 1 0:20 / /proc rw - proc proc rw\n30 1 0:28 / / rw,relatime - {kind} x rw\n"


@pytest.mark.parametrize(
    ("files", "spaces", "known", "word"),
    [
        ({"proc/1/cgroup": "0::/\n", "proc/self/mountinfo": mounted("overlay")}, {}, False, "overlay"),
        ({"proc/1/cgroup": "0::/\n", "proc/self/mountinfo": mounted("ext4")}, {}, True, "no sign"),
        ({"proc/1/cgroup": "0::/\n"}, {}, False, "nothing that rules one out"),
        ({}, {}, False, "absent"),
        ({}, {"pid": FIRST_PID, "cgroup": FIRST_CGROUP}, True, "own namespaces"),
        (
            {"proc/1/cgroup": "0::/\n", "proc/self/mountinfo": mounted("overlay")},
            {"pid": FIRST_PID, "cgroup": FIRST_CGROUP},
            True,
            "own namespaces",
        ),
        ({"proc/1/cgroup": "0::/init.scope\n"}, {"pid": "pid:[4026532281]"}, False, "a pid namespace"),
        ({"proc/1/cgroup": "0::/x\n"}, {"pid": FIRST_PID, "cgroup": "cgroup:[402]"}, False, "a cgroup"),
    ],
)
def test_that_there_is_no_container_must_be_seen(
    make_root: MakeRoot, files: dict[str, str], spaces: dict[str, str], known: bool, word: str
) -> None:
    root = make_root(files)
    for kind, number in spaces.items():
        link = root / f"proc/self/ns/{kind}"
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(number)
    inventory = host.read(root)
    assert inventory.machine.container is None
    told = inventory.provenance["machine.container"]
    assert (told.state is State.OK) is known
    assert word in (told.reason or "")
    assert f"container         {'none seen' if known else 'unknown'}" in text.page(inventory)


def test_a_capture_knows_that_there_was_no_container(make_root: MakeRoot, tmp_path: Path) -> None:
    root = make_root({"proc/self/status": "Cpus_allowed_list:\t0-7\n"})
    (root / "proc/self/ns").mkdir()
    (root / "proc/self/ns/pid").symlink_to(FIRST_PID)
    target = tmp_path / "capture.tar.gz"
    assert capture.write(target, root).differs == ()
    told = host.read(target).provenance["machine.container"]
    assert (told.state, told.reason) == (
        State.OK,
        "no sign of one; the process is in the machine's own namespaces",
    )


def test_settings_that_spoil_figures_are_findings(make_root: MakeRoot) -> None:
    files = {
        "proc/sys/kernel/numa_balancing": "1\n",
        "proc/sys/vm/zone_reclaim_mode": "1\n",
        "proc/sys/vm/swappiness": "60\n",
        "sys/kernel/mm/transparent_hugepage/enabled": "always madvise [never]\n",
        "sys/kernel/mm/transparent_hugepage/defrag": "always defer defer+madvise [madvise] never\n",
        "proc/loadavg": "12.50 3.00 1.00 2/900 77\n",
        "proc/meminfo": "MemTotal: 67108864 kB\nMemAvailable: 60000000 kB\n"
        "SwapTotal: 8388608 kB\nSwapFree: 4194304 kB\n",
        "sys/devices/system/cpu/vulnerabilities/meltdown": "Not affected\n",
    }
    inventory = host.read(make_root(files))
    kernel = inventory.kernel
    assert (kernel.numa_balancing, kernel.zone_reclaim_mode, kernel.swappiness) == (True, 1, 60)
    assert (kernel.transparent_hugepage, kernel.transparent_hugepage_defrag) == ("never", "madvise")
    assert dict(kernel.mitigations) == {"meltdown": "Not affected"}
    assert inventory.memory.swap_used_bytes == 4 * 2**30
    codes = {f.code for f in inventory.findings}
    assert codes == {"numa_balancing_on", "zone_reclaim_on", "thp_never", "high_load", "swap_in_use"}
    for finding in inventory.findings:
        assert finding.observed
        assert finding.expected
        assert finding.why
        assert finding.remedy


def test_a_well_kept_machine_has_no_findings(make_root: MakeRoot) -> None:
    files = {"proc/loadavg": "0.01 0.02 0.03 1/900 77\n", "proc/sys/kernel/numa_balancing": "0\n"}
    inventory = host.read(make_root(files))
    assert inventory.findings == ()
    assert "None: nothing seen that would spoil figures." in text.page(inventory)


@pytest.mark.case("STO-08")
def test_sto_08_bytes_are_exact_and_words_carry_their_unit(make_root: MakeRoot) -> None:
    """STO-08: MemTotal of 14.9 GiB on a 16 GB host stays in bytes and is shown in both units."""
    inventory = host.read(make_root({"proc/meminfo": "MemTotal: 15623782 kB\nMemAvailable: 15000000 kB\n"}))
    assert inventory.memory.total_bytes == 15_623_782 * 1024
    assert "usable by kernel  14.9 GiB (16.0 GB)" in text.page(inventory)


@pytest.mark.parametrize(
    ("meminfo", "field"),
    [
        ("MemTotal: 0 kB\n", "total_bytes"),
        ("MemTotal: -4 kB\n", "total_bytes"),
        ("MemTotal: 10 kB\nMemAvailable: 11 kB\n", "available_bytes"),
        ("MemTotal: 10 kB\nSwapTotal: 5 kB\nSwapFree: 6 kB\n", "swap_used_bytes"),
    ],
)
def test_impossible_amounts_are_unknown(make_root: MakeRoot, meminfo: str, field: str) -> None:
    inventory = host.read(make_root({"proc/meminfo": meminfo}))
    assert getattr(inventory.memory, field) is None
    assert inventory.provenance[f"memory.{field}"].state is State.FAILED


def test_every_unknown_field_has_a_reason(make_root: MakeRoot) -> None:
    """Whatever is None in the document is explained in its provenance."""
    document = host.document(host.read(make_root({"proc/cpuinfo": "\n"}, bare=True)))
    explained = document["provenance"]
    for part in ("machine", "cpu", "memory", "kernel", "limits"):
        for field, value in document[part].items():
            if value is None:
                assert f"{part}.{field}" in explained, f"{part}.{field}"
                assert explained[f"{part}.{field}"]["reason"], f"{part}.{field}"


def test_the_page_is_plain_and_at_most_100_columns(make_root: MakeRoot) -> None:
    page = text.page(host.read(make_root({"proc/cmdline": "a=b " * 200})))
    assert max(len(line) for line in page.splitlines()) <= 100
    assert "\x1b" not in page
    assert page.index("Findings") < page.index("Processors") < page.index("Not seen, and why")


def test_two_live_readings_differ_in_volatile_fields_only() -> None:
    assert host.stable(host.read()) == host.stable(host.read())
    assert "kernel.load_average" in host.volatile
    assert "memory.total_bytes" not in host.volatile

"""The firmware's table in the inventory: what it adds, and what is said where there is none."""

from __future__ import annotations

import os
from typing import Any

import attrs
import pytest

from k3gate import host
from k3gate.host import findings
from k3gate.host.channels import channels_of_model, channels_of_processors
from k3gate.host.memory import without_hidden_cxl
from k3gate.host.notes import Notes
from k3gate.records import Cpu, CpuSocket, Dimm, Memory, Numa, NumaNode, State

TABLE = "sys/firmware/dmi/tables/DMI"
GIB = 2**30


def structure(kind: int, handle: int, body: bytes, *strings: str) -> bytes:
    head = bytes([kind, 4 + len(body)]) + handle.to_bytes(2, "little")
    text = b"".join(one.encode() + b"\0" for one in strings) or b"\0"
    return head + body + text + b"\0"


def module(handle: int, locator: str, gib: int, rated: int = 4800, configured: int = 4800) -> bytes:
    """A slot of array 0x1000 with a DDR5 module of `gib` GiB, or empty for 0."""
    body = bytearray(0x28 - 4)
    body[0:2] = (0x1000).to_bytes(2, "little")
    body[8:10] = (0x7FFF if gib >= 32 else gib * 1024).to_bytes(2, "little")
    body[0x10 - 4] = 1  # locator
    body[0x12 - 4] = 0x22  # DDR5
    body[0x15 - 4 : 0x17 - 4] = rated.to_bytes(2, "little")
    body[0x17 - 4] = 2  # manufacturer
    body[0x1A - 4] = 3  # part number
    body[0x1C - 4 : 0x20 - 4] = (gib * 1024 if gib >= 32 else 0).to_bytes(4, "little")
    body[0x20 - 4 : 0x22 - 4] = configured.to_bytes(2, "little")
    return structure(17, handle, bytes(body), locator, "Example", "EX-4800")


def table(*modules: bytes) -> bytes:
    array = (
        bytes([3, 3, 6])
        + (0x80000000).to_bytes(4, "little")
        + b"\xfe\xff"
        + len(modules).to_bytes(2, "little")
    )
    cpu = bytearray(0x30 - 4)
    cpu[0x04 - 4], cpu[0x10 - 4], cpu[0x18 - 4] = 1, 2, 0x41
    cpu[0x23 - 4], cpu[0x25 - 4] = 8, 16
    return b"".join(
        (
            structure(1, 1, bytes([1, 2]) + bytes(21), "Example Inc.", "Server 9"),
            structure(4, 4, bytes(cpu), "CPU0", "EXAMPLE 9X55 8-Core Processor"),
            structure(16, 0x1000, array),
            *modules,
            structure(127, 0xFEFF, b""),
        )
    )


def put(root: Any, raw: bytes) -> Any:
    path = root / TABLE
    path.parent.mkdir(parents=True)
    path.write_bytes(raw)
    return root


def test_modules_channels_and_ceiling_with_their_source(make_root: Any) -> None:
    modules = [module(0x1100 + n, f"P0 CHANNEL {chr(65 + n)}", 64 if n != 7 else 0) for n in range(8)]
    inventory = host.read(put(make_root(), table(*modules)))
    memory = inventory.memory
    assert (memory.slots, memory.populated, memory.channels) == (8, 7, 7)
    assert memory.theoretical_bytes_per_s == 7 * 4800e6 * 8
    # The table names eight channels, and two processors of this model have sixteen.
    assert memory.full_bytes_per_s == 16 * 4800e6 * 8
    empty = next(one for one in inventory.findings if one.code == "empty_channels")
    assert empty.title == "9 memory channels of 16 are empty"
    assert "CHANNEL H" in empty.observed and "7 of the 16 channels of Intel(R) Xeon(R)" in empty.observed
    assert memory.empty_channels is not None and "CHANNEL H" in memory.empty_channels[0]
    assert memory.dimms is not None and memory.dimms[0].bytes == 64 * GIB
    assert memory.arrays is not None and memory.arrays[0].ecc == "multi-bit ECC"
    assert inventory.provenance["memory.channels"].source == TABLE
    assert inventory.provenance["memory.theoretical_bytes_per_s"].state is State.OK
    assert inventory.cpu.socket_list is not None and inventory.cpu.socket_list[0].cores == 8


def test_what_the_kernel_does_not_show_comes_from_the_table(make_root: Any) -> None:
    root = put(make_root({"proc/cpuinfo": "\n"}, bare=True), table(module(1, "DIMM_A1", 32)))
    inventory = host.read(root)
    assert (inventory.machine.vendor, inventory.machine.product) == ("Example Inc.", "Server 9")
    assert inventory.cpu.model == "EXAMPLE 9X55 8-Core Processor"
    assert inventory.provenance["cpu.model"].source == TABLE


def test_every_field_of_the_modules_has_a_reason_where_there_is_no_table() -> None:
    from k3gate.host import dimms, memory

    assert set(memory.MODULE_FIELDS) == {*dimms.FIELDS, "arrays"}


@pytest.mark.case("MEM-05")
def test_mem_05_without_a_table_everything_about_modules_says_so(make_root: Any) -> None:
    inventory = host.read(make_root())
    assert inventory.memory.channels is None
    assert inventory.memory.theoretical_bytes_per_s is None
    entry = inventory.provenance["memory.channels"]
    assert (entry.state, entry.reason) == (State.NOT_PRESENT, "the machine shows no firmware table")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_table_that_only_root_may_read_names_the_way_to_it(make_root: Any) -> None:
    root = put(make_root(), table())
    (root / TABLE).chmod(0)
    entry = host.read(root).provenance["memory.channels"]
    assert entry.state is State.NOT_PERMITTED
    assert entry.reason is not None and "sudo" in entry.reason


@pytest.mark.case("MEM-04")
def test_mem_04_nothing_in_a_guests_table_is_believed(make_root: Any) -> None:
    root = make_root({"proc/cpuinfo": make_root.cpuinfo(range(8), "lm hypervisor")})
    inventory = host.read(put(root, table(module(1, "DIMM 0", 32))))
    assert inventory.memory.channels is None and inventory.memory.theoretical_bytes_per_s is None
    assert "population not evaluated" in (inventory.provenance["memory.channels"].reason or "")


@pytest.mark.parametrize("raw", [b"", b"\0" * 100, b"\x11\x22", bytes(range(256)) * 8])
def test_a_damaged_table_is_unknown_and_never_an_exception(make_root: Any, raw: bytes) -> None:
    assert host.read(put(make_root(), raw)).memory.channels is None


def test_the_kernels_entries_stand_in_for_the_table(make_root: Any) -> None:
    """Some captures hold one file per structure instead of the whole table."""
    root = make_root()
    for number in range(2):
        path = root / f"sys/firmware/dmi/entries/17-{number}/raw"
        path.parent.mkdir(parents=True)
        path.write_bytes(module(0x1100 + number, f"P0 CHANNEL {chr(65 + number)}", 32))
    inventory = host.read(root)
    assert inventory.memory.channels == 2
    assert inventory.provenance["memory.channels"].source == "sys/firmware/dmi/entries/*/raw"


@pytest.mark.parametrize(
    ("model", "channels"),
    [
        ("AMD EPYC 7763 64-Core Processor", 8),
        ("AMD EPYC 7F52 16-Core Processor", 8),
        ("AMD EPYC 9654 96-Core Processor", 12),
        ("AMD EPYC 9R45", 12),
        ("AMD EPYC 8534P 64-Core Processor", 6),
        ("AMD EPYC 4564P 16-Core Processor", None),
        ("AMD Ryzen Threadripper PRO 3955WX 16-Cores", 8),
        ("AMD Ryzen Threadripper 2990WX 32-Core Processor", 4),
        ("Intel(R) Xeon(R) Platinum 8280 CPU @ 2.70GHz", 6),
        ("Intel(R) Xeon(R) Platinum 8259CL CPU @ 2.50GHz", 6),
        ("Intel(R) Xeon(R) Gold 6330H CPU @ 2.00GHz", 6),
        ("Intel(R) Xeon(R) Gold 6330 CPU @ 2.00GHz", 8),
        ("Intel(R) Xeon(R) Platinum 8488C", 8),
        ("Intel(R) Xeon(R) 6710E", 8),
        ("Intel(R) Xeon(R) 6980P", 12),
        ("Intel(R) Xeon(R) CPU Max 9480", 8),
        ("Intel(R) Xeon(R) CPU E5-2680 v4 @ 2.40GHz", 4),
        ("Intel(R) Xeon(R) Processor", None),
        ("Ampere(R) Altra(R) Processor", 8),
        ("INTEL(R) XEON(R) GOLD 6530", 8),
        ("INTEL(R) XEON(R) PLATINUM 8592+", 8),
        ("Intel(R) Xeon(R) Platinum 9282 CPU @ 2.60GHz", 12),
        ("Intel(R) Xeon(R) Platinum 8361HC CPU @ 2.60GHz", 6),
        ("Intel(R) Xeon(R) 6533P-B", 4),
        ("Intel(R) Xeon(R) 6726P-B", 4),
        ("Intel(R) Xeon(R) 6776P-B", 8),
        ("Intel(R) Xeon(R) 6369P", 2),
        ("Intel(R) Xeon(R) 698X", 8),
        ("Intel(R) Xeon(R) 656", 8),
        ("Intel(R) Xeon(R) 636", 4),
        ("Intel(R) Xeon(R) w9-3495X", 8),
        ("Intel(R) Xeon(R) w7-2595X", 4),
        ("Intel(R) Xeon(R) W-3375 CPU @ 2.50GHz", 8),
        ("Intel(R) Xeon(R) CPU E5-1428L v3 @ 2.00GHz", 3),
        ("Intel(R) Xeon(R) D-1746TER CPU @ 2.00GHz", None),
        ("AMD Ryzen Threadripper 7980X 64-Cores", 4),
        ("AMD EPYC 7D12 32-Core Processor", None),
        ("AMD EPYC 9V64H 96-Core Processor", None),
        (None, None),
    ],
)
def test_channels_of_a_processor_model(model: str | None, channels: int | None) -> None:
    assert channels_of_model(model) == channels


def test_a_processor_that_linux_names_by_its_cores_goes_by_the_firmware() -> None:
    here = CpuSocket("CPU 1", True, "Ampere(R) Altra(R) Processor")
    cpu = Cpu(model="Arm Neoverse-N1 (implementer 0x41, part 0xd0c)", sockets=1, socket_list=(here,))
    assert channels_of_processors(cpu) == 8
    assert channels_of_processors(Cpu(model=cpu.model, sockets=1)) is None


def test_less_memory_than_is_installed_and_more_than_is_dram_are_findings(make_root: Any) -> None:
    """Mirroring or modules that were mapped out; and Optane in Memory Mode, which the nodes do not show."""

    modules = [module(0x1100 + n, f"P0 CHANNEL {chr(65 + n)}", 64) for n in range(8)]
    inventory = host.read(put(make_root(), table(*modules)))
    many = {"dimms": (inventory.memory.dimms or ()) * 3, "dram_bytes": 1536 * GIB, "total_bytes": 1440 * GIB}
    one_lost = attrs.evolve(inventory.memory, **many)
    lost = [f for f in findings.find(attrs.evolve(inventory, memory=one_lost)) if f.code == "memory_not_seen"]
    assert [finding.severity for finding in lost] == ["medium"]
    half = attrs.evolve(inventory.memory, total_bytes=250 * GIB)
    codes = {f.code for f in findings.find(attrs.evolve(inventory, memory=half))}
    assert "memory_not_seen" in codes and "memory_mode" not in codes
    mode = attrs.evolve(inventory.memory, total_bytes=1500 * GIB, pmem_bytes=1500 * GIB)
    codes = {f.code for f in findings.find(attrs.evolve(inventory, memory=mode))}
    assert "memory_mode" in codes
    whole = attrs.evolve(inventory.memory, total_bytes=500 * GIB)
    codes = {f.code for f in findings.find(attrs.evolve(inventory, memory=whole))}
    assert not codes & {"memory_mode", "memory_not_seen"}


def test_nodes_of_a_machine_in_memory_mode_are_not_called_dram(make_root: Any) -> None:
    """Nothing in the nodes tells it where the firmware has no HMAT; the amounts do."""
    modules = [module(0x1100 + n, f"P0 CHANNEL {chr(65 + n)}", 64 if n else 126) for n in range(8)]
    root = put(make_root(), table(*modules))
    (root / "proc/meminfo").write_text(f"MemTotal: {570 * 2**20} kB\nMemAvailable: {500 * 2**20} kB\n")
    inventory = host.read(root)
    assert inventory.memory.pmem_bytes == 126 * GIB
    assert {node.kind for node in inventory.numa.nodes if node.cpus} == {"unknown"}
    told = inventory.provenance[f"numa.nodes.{inventory.numa.nodes[0].id}.kind"]
    assert told.reason is not None and "Memory Mode" in told.reason


def test_cxl_memory_that_the_table_calls_dram_costs_the_channels() -> None:
    """An expander in the board's own array would count as a channel that the processor has not."""
    own, expander = NumaNode(0, (0, 1), 500 * GIB, kind="dram"), NumaNode(1, (), 128 * GIB, kind="cxl")
    numa = Numa(True, (own, expander))
    counted = Memory(dram_bytes=640 * GIB, channels=9, theoretical_bytes_per_s=9 * 38.4e9, dimms=())
    notes = Notes()
    memory = without_hidden_cxl(counted, numa, notes)
    assert (memory.channels, memory.theoretical_bytes_per_s, memory.dram_bytes) == (None, None, None)
    reason = notes.entries["memory.channels"].reason
    assert reason is not None and "640 GiB as DRAM, of which 128 GiB are CXL" in reason
    plain = attrs.evolve(counted, dram_bytes=512 * GIB)
    assert without_hidden_cxl(plain, numa, Notes()) == plain
    named = attrs.evolve(counted, dimms=(Dimm(kind="cxl"),))
    assert without_hidden_cxl(named, numa, Notes()) == named


def test_names_that_put_eight_slots_on_a_channel_name_no_channel(make_root: Any) -> None:
    modules = [module(0x1100 + n, f"DIMM_A{n + 1}", 32) for n in range(8)]
    inventory = host.read(put(make_root(), table(*modules)))
    assert inventory.memory.channels is None
    assert "8 slots on one channel" in (inventory.provenance["memory.channels"].reason or "")


def bios(characteristics: int, length: int = 0x18) -> bytes:
    """Type 0, of which old firmware leaves out the end."""
    body = bytearray(0x18 - 4)
    body[0] = 1
    body[0x13 - 4] = characteristics
    body[0x16 - 4 : 0x18 - 4] = bytes([2, 8])
    return structure(0, 0, bytes(body[: length - 4]), "EDK II")


ARM = (
    "processor\t: 0\nFeatures\t: fp asimd\nCPU implementer\t: 0x41\nCPU architecture: 8\nCPU part\t: 0xd0c\n"
)


@pytest.mark.parametrize(
    ("raw", "virtual", "source", "word"),
    [
        (bios(0x1C) + table(module(1, "DIMM_A1", 32)), True, TABLE, "says that its table describes"),
        (bios(0x0C) + table(module(1, "DIMM_A1", 32)), False, TABLE, "real memory modules"),
        (bios(0x0C) + table(module(1, "DIMM_A1", 0)), None, None, "does not name real memory modules"),
        (table(module(1, "DIMM_A1", 32)), None, None, "does not tell either"),
        (bios(0, 0x13) + table(module(1, "DIMM_A1", 32)), None, None, "does not tell either"),
        (None, None, None, "the machine shows no firmware table"),
    ],
)
def test_without_a_flag_the_table_tells_a_guest_from_a_machine(
    make_root: Any, raw: bytes | None, virtual: bool | None, source: str | None, word: str
) -> None:
    """ARM has no hypervisor flag, and a cloud's name need not be one that is known here."""
    root = make_root({"proc/cpuinfo": ARM, "sys/class/dmi/id/sys_vendor": "Scaleway\n"})
    inventory = host.read(put(root, raw) if raw is not None else root)
    assert inventory.machine.virtual is virtual
    told = inventory.provenance["machine.virtual"]
    assert (told.state is State.OK) is (virtual is not None)
    assert source in (None, told.source)
    assert word in (told.reason or "")


def test_a_guest_that_hides_the_flag_and_not_its_firmware(make_root: Any) -> None:
    inventory = host.read(put(make_root(), bios(0x1C) + table(module(1, "DIMM_A1", 32))))
    assert inventory.machine.virtual is True


def test_the_release_of_the_controller_comes_from_the_table_where_the_kernel_shows_none(
    make_root: Any,
) -> None:
    root = put(make_root(), bios(0) + table())
    assert host.read(root).machine.firmware["controller_release"] == "2.8"
    make_root.put(root, {"sys/class/dmi/id/ec_firmware_release": "3.1\n"})
    assert host.read(root).machine.firmware["controller_release"] == "3.1"

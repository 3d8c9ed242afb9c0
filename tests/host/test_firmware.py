"""The firmware's table in the inventory: what it adds, and what is said where there is none."""

from __future__ import annotations

import os
from typing import Any

import pytest

from k3gate import host
from k3gate.host.channels import channels_per_socket
from k3gate.records import State

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
    assert memory.full_bytes_per_s == 8 * 4800e6 * 8
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
        ("Intel(R) Xeon(R) 6533P-B", None),
        ("AMD EPYC 9V64H 96-Core Processor", None),
        (None, None),
    ],
)
def test_channels_of_a_processor_model(model: str | None, channels: int | None) -> None:
    assert channels_per_socket(model) == channels


def test_less_memory_than_is_installed_and_more_than_is_dram_are_findings(make_root: Any) -> None:
    """Mirroring or modules that were mapped out; and Optane in Memory Mode, which the nodes do not show."""
    import attrs

    from k3gate.host import findings

    modules = [module(0x1100 + n, f"P0 CHANNEL {chr(65 + n)}", 64) for n in range(8)]
    inventory = host.read(put(make_root(), table(*modules)))
    half = attrs.evolve(inventory.memory, total_bytes=250 * GIB)
    codes = {f.code for f in findings.find(attrs.evolve(inventory, memory=half))}
    assert "memory_not_seen" in codes and "memory_mode" not in codes
    mode = attrs.evolve(inventory.memory, total_bytes=1500 * GIB, pmem_bytes=1500 * GIB)
    codes = {f.code for f in findings.find(attrs.evolve(inventory, memory=mode))}
    assert "memory_mode" in codes
    whole = attrs.evolve(inventory.memory, total_bytes=500 * GIB)
    codes = {f.code for f in findings.find(attrs.evolve(inventory, memory=whole))}
    assert not codes & {"memory_mode", "memory_not_seen"}


def test_names_that_put_eight_slots_on_a_channel_name_no_channel(make_root: Any) -> None:
    modules = [module(0x1100 + n, f"DIMM_A{n + 1}", 32) for n in range(8)]
    inventory = host.read(put(make_root(), table(*modules)))
    assert inventory.memory.channels is None
    assert "8 slots on one channel" in (inventory.provenance["memory.channels"].reason or "")

"""The emulated machines, each booted once a session however many tests ask it. They run alone: two cores."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))

import firmware
import machine
import persistent
from machine import Answers, Emulator, Node

TABLE = """
cp /sys/firmware/dmi/tables/DMI DMI.bin
cp /sys/firmware/dmi/tables/smbios_entry_point smbios_entry_point.bin
"""


def measure(rounds: int, *cases: str) -> str:
    """The line of a job that measures cases. Each worker takes seconds to start and to fill its pool, so they
    are few; and they fit into the 18 s for which this profile plans, or its plan would be cut.
    """
    only = " ".join(
        f"--only 'memory/{case}'" for case in ("read.machine", "read.node*", "residency.*", *cases)
    )
    return f"run measure k3gate run --profile smoke --rounds {rounds} {only} --json\n"


LATENCY = "run latency k3gate run --profile quick --rounds 1 --only 'memory/latency.node*' --json\n"
"""The line of a job that measures latency from each node to each."""


OTHERS = (
    "run others k3gate run --profile quick --rounds 1 --only 'memory/staircase.node0' --only 'memory/loaded.node0' "
    "--only 'memory/experts.*' --only 'memory/read.interleaved' "
    "--only 'memory/read.4k.node0' --only 'memory/copy*.node0' --json\n"
)
"""The line of a job that measures one of each other kind of case."""


PRODUCTS = """
cat >products.py <<'END'
import json
from k3gate.probes import _native, gemm_kernels as g
team = _native.Team(_native.allowed_cpus()[:1])
proofs = []
for v in g.variants(g.choose_path(None)):
    t = v.trial(False, 64, 416, 1 << 20, "small", 1)
    t.run(team, 3, 2)
    ok = g.prove(v, 3, 416).ok and g.prove_expert(v, 2, 256, 128).ok and g.recomputed(t, 1).ok
    proofs.append((v.format, v.path, ok))
print(json.dumps({"paths": {p.name: p.state for p in g.paths()}, "proofs": proofs}))
END
run products /k3gate/bin/python products.py
run peaks k3gate run --profile quick --rounds 1 --only 'gemm/peak.*' --json
"""
"""The lines of a job that proves every product, and asks each instruction set for its peak."""


PLACEMENTS = """
cat >placements.py <<'END'
import json, random
from array import array
from attrs import evolve
from k3gate.probes import decode_kernels as d, decode_replay
nodes = ((0, (0, 1)), (1, (2,)))
steps, batch = 3, 2
one = d.Setup(decode_replay.REDUCED, "q8_0", "avx2", nodes, batch=batch, context=70, room=8, pages="small")
shape, dice, ids = one.shape, random.Random(1), array("h")
for _ in range(steps * shape.layers * batch):
    ids.extend(dice.sample(range(shape.experts), shape.used))
found = {"ids": list(ids), "steps": steps, "batch": batch, "layers": shape.layers, "used": shape.used,
         "width": shape.width}
for placement in d.PLACEMENTS:
    own = evolve(one, placement=placement, node_cpus=nodes[:1] if placement == "single" else nodes)
    engine = d.Engine(own)
    report = engine.run(ids.tobytes(), steps)
    logits = array("f", report.logits)
    filled = [decode_replay.pools.FilledPool(pool, node if node >= 0 else None, "small", 0, engine.bind_errors[node])
              for node, pool in engine.pools]
    proof = decode_replay.placement(engine, own, filled)
    found[placement] = {"logits": list(logits), "crossed": report.crossed_bytes, "bound": engine.bind_errors,
                        "placement": [proof.ok, proof.detail], "recheck": engine.recheck(1).ok,
                        "proof": d.prove(evolve(own, context=4)).ok,
                        "cpus": [[t.cpu_before, t.cpu_after] for t in report.threads]}
    engine.close()
print(json.dumps(found))
END
run placements /k3gate/bin/python placements.py
"""
"""The lines of a job that decodes the same steps of a reduced model in each placement, on two nodes."""


@pytest.fixture(scope="session")
def emulator(tmp_path_factory: pytest.TempPathFactory) -> Emulator:
    """QEMU, a kernel, and the image with k3gate in it."""
    return machine.emulator(tmp_path_factory.mktemp("emulated"))


@pytest.fixture(scope="session")
def cpus_without_memory(emulator: Emulator) -> Answers:
    """Nodes 0 and 1 of one CPU; node 2 has a CPU and no memory, and lies near node 1. The firmware tells of eight
    memory channels, the last of them empty.
    """
    modules = dict.fromkeys("ABCDEFG", firmware.Module())
    shape = machine.shape(Node(1024, [0]), Node(1024, [1]), Node(None, [2]), near=[(1, 2)])
    shape += firmware.options(emulator.folder / "empty", modules)
    job = "run host k3gate host --json\nrun capture k3gate capture -o machine.tar.gz\n"
    return emulator.boot("cpus_without_memory", shape, job + TABLE + measure(3) + LATENCY)


@pytest.fixture(scope="session")
def memory_without_cpus(emulator: Emulator) -> Answers:
    """Nodes 0 and 1 of two CPUs, of which CPU 3 is offline; node 2 has memory and no CPUs, and lies near node 1.
    One of eight memory modules is slow. (QEMU describes a node without memory so that the kernel refuses the
    whole HMAT: hence two machines.)
    """
    modules = dict.fromkeys(firmware.CHANNELS, firmware.Module()) | {"C": firmware.Module(configured=4400)}
    figures = {(0, 0): (90, 100), (0, 1): (140, 60), (0, 2): (300, 15)}
    figures |= {(1, 0): (140, 60), (1, 1): (90, 100), (1, 2): (250, 20)}
    nodes = (Node(768, [0, 1], 0), Node(768, [2, 3], 1), Node(512, (), 1))
    shape = machine.shape(*nodes, near=[(1, 2)], figures=figures)
    shape += firmware.options(emulator.folder / "slow", modules)
    job = "echo 0 >/sys/devices/system/cpu/cpu3/online\nrun host k3gate host --json\n"
    return emulator.boot(
        "memory_without_cpus",
        shape,
        job + TABLE + measure(1, "read.core.*") + LATENCY + OTHERS + PRODUCTS,
    )


@pytest.fixture(scope="session")
def two_nodes(emulator: Emulator) -> Answers:
    """Two nodes of two CPUs: they decode, and nothing else, since an emulator takes minutes for all the rest."""
    shape = machine.shape(Node(768, [0, 1]), Node(768, [2, 3]))
    return emulator.boot("two_nodes", shape, PLACEMENTS)


WEIGHTS_MIB = 160
"""Of the file in persistent memory: beyond 4 x the caches of two emulated processors."""
MAPPED = """
for module in libnvdimm nd_btt nd_pmem nfit; do insmod /lib/modules/$module.ko; done
until test -b /dev/pmem0; do sleep 0.1; done
mkdir /tmp/pmem /tmp/huge /tmp/small
mount -t ext4 -o dax=always /dev/pmem0 /tmp/pmem
mount -t hugetlbfs none /tmp/huge
mount -t tmpfs -o size=10m none /tmp/small
echo 140 >/sys/devices/system/node/node1/hugepages/hugepages-2048kB/nr_hugepages
echo 0 >/sys/devices/system/cpu/cpu1/online
md5sum /tmp/pmem/weights >before
run full k3gate run --memory-file /tmp/small --dry-run
run measure k3gate run --profile quick --rounds 1 --only 'memory/file1.*' --only 'memory/file[23].read' \
  --only 'memory/file3.latency.node1' --only 'memory/latency.node*' \
  --memory-file /tmp/pmem/weights --memory-file /tmp/pmem --memory-file /tmp/huge --json
md5sum /tmp/pmem/weights >after
ls -A /tmp/pmem /tmp/huge >left
"""


@pytest.fixture(scope="session")
def persistent_memory(emulator: Emulator) -> Answers:
    """Two nodes of two CPUs, of which CPU 1 is offline; on node 1 persistent memory with a file in it, and huge
    pages.
    """
    assert len(machine.modules_of(emulator.kernel)) == len(machine.PERSISTENT), (
        "the kernel's modules are missing"
    )
    folder = emulator.folder / "persistent"
    folder.mkdir()
    (folder / "weights").write_bytes(os.urandom(WEIGHTS_MIB << 20))
    shape = machine.shape(Node(768, [0, 1]), Node(1024, [2, 3]))
    shape += persistent.build(folder, emulator.folder / "persistent.img", emulator.mke2fs, 512)
    return emulator.boot("persistent_memory", shape, MAPPED)


DRIVES = """
for name in nvme0n1 nvme1n1 nvme2n1; do test $(cat /sys/block/$name/size) = 131072 && models=$name; done
mkdir /tmp/models
mount -t ext4 /dev/$models /tmp/models
mkdir /tmp/models/kimi-k3
run host k3gate host --storage /tmp/models/kimi-k3 --storage /dev/shm --json
run refused k3gate host --storage /dev/$models
run capture k3gate capture -o machine.tar.gz --storage /tmp/models/kimi-k3
run run k3gate run --profile smoke --probe selftest --only selftest/hash.64k --rounds 1 --json
"""


@pytest.fixture(scope="session")
def two_drives(emulator: Emulator) -> Answers:
    """Two nodes, each with an NVMe drive behind a port of its own: at node 0 one of 64 MiB that holds a file system,
    at node 1 an empty one of 32 MiB with blocks of 4 KiB. (The third drive holds the root file system.) The port at
    node 0 can do 16 GT/s on 4 lanes, that at node 1 2.5 GT/s on 1, which is all that QEMU's drives can do.
    """
    empty = emulator.folder / "drives"
    empty.mkdir()
    shape = machine.shape(Node(768, [0]), Node(512, [1]))
    for node, (size, block) in enumerate(((64, 512), (32, 4096))):
        image = emulator.folder / f"drive{node}.img"
        if node == 0:
            machine.image.file_system(empty, image, emulator.mke2fs, size)
        else:
            image.write_bytes(bytes(size << 20))
        shape += ["-device", f"pxb-pcie,id=bus{node},bus=pcie.0,bus_nr={64 + 32 * node},numa_node={node}"]
        port = f"pcie-root-port,id=port{node},bus=bus{node},chassis={node + 1},slot={node + 1}"
        shape += ["-device", f"{port},{('x-speed=16,x-width=4', 'x-speed=2_5,x-width=1')[node]}"]
        shape += ["-drive", f"file={image},if=none,id=drive{node},format=raw,snapshot=on"]
        described = f"nvme,drive=drive{node},serial=SECRET{node},bus=port{node}"
        shape += ["-device", f"{described},logical_block_size={block},physical_block_size={block}"]
    return emulator.boot("two_drives", shape, DRIVES)


SHARD_MIB = 160
"""Of the shard on the drive that is removed: more than four times what is under way at once."""
REMOVED = """
for name in nvme0n1 nvme1n1; do test $(cat /sys/block/$name/size) = 524288 && models=$name; done
mkdir /tmp/models
mount -t ext4 /dev/$models /tmp/models
reads() { set -- $(cat /sys/block/$models/stat); echo $3; }
remove() {
  until grep -q "path1.direct.1m.t1.q32 round 1" storage.err 2>/dev/null; do sleep 0.1; done
  before=$(reads)
  until test $(reads) -gt $((before + 2048)); do sleep 0.1; done
  echo REMOVE >/dev/console
}
remove &
run storage k3gate run --profile standard --probe storage --rounds 1 --storage /tmp/models --json \
  --only storage/path1.direct.1m.t1.q32 --only storage/path1.course --only storage/hash
ls /sys/block >left
"""


@pytest.fixture(scope="session")
def drive_removed(emulator: Emulator) -> Answers:
    """A drive with a shard of a checkpoint is unplugged while it is read on end."""
    folder = emulator.folder / "removed"
    folder.mkdir()
    (folder / "model.safetensors").write_bytes(os.urandom(SHARD_MIB << 20))
    image = emulator.folder / "removed.img"
    machine.image.file_system(folder, image, emulator.mke2fs, 256)
    shape = machine.shape(Node(1024, [0, 1]))
    shape += ["-device", "pcie-root-port,id=port0,bus=pcie.0,chassis=1,slot=1"]
    shape += ["-drive", f"file={image},if=none,id=drive0,format=raw,snapshot=on"]
    shape += ["-device", "nvme,id=models,drive=drive0,serial=models,bus=port0"]
    return emulator.boot("drive_removed", shape, REMOVED, removed="models")

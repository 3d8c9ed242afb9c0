"""What the monitor costs: CPU time of its threads, and whether a memory read in another process notices it.

    python benchmarks/monitor.py [--pairs 21] [--seconds 2]

Both on this machine's own sources and on those of a large server whose sysfs files are drawn into a folder in
memory: 128 cores, 26 modules and drives with sensors, 40 sensors of the board, energy counters, 300 PCIe devices.
A drawn file costs the reader as much as a real one; what a driver does to answer is not in it.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pairs

from k3gate import host
from k3gate.probes import _native, pools
from k3gate.probes.sharing import choose_isa
from k3gate.probing import sources
from k3gate.probing.monitor import Account, Monitor, Source

SHARE = 0.01
"""Of one core: what the monitor may take at 2 Hz over all sources."""
START_S = 0.7
"""A run starts its monitor once: what all sources do at first is not what a case of it meets."""
CORES, PACKAGES, MODULES, DRIVES, BOARD, LINKS = 128, 2, 24, 8, 40, 300


def main() -> int:
    """Print the lines; exit 1 where one does not hold."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--pairs", type=int, default=21)
    parser.add_argument("--seconds", type=float, default=2.0, help="of one reading")
    parser.add_argument("--reader", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.reader:
        return read_on_demand(arguments.seconds)
    shared = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=shared if shared.is_dir() else None) as folder:
        draw(Path(folder))
        large = sources.build(host.read(folder), root=folder)
        own = sources.build(host.read())
        held = [cost("this machine", own), cost("a large server, drawn", large)]
        held.append(noticed(large, arguments.pairs, arguments.seconds))
    return 0 if all(held) else 1


def cost(title: str, found: Sequence[Source], seconds: float = 30.0) -> bool:
    """CPU time of the threads over half a minute; errors are read each half minute, so twice at least."""
    with Monitor(found, time.monotonic()) as watching:
        time.sleep(seconds)
    accounts = watching.accounts()
    share = sum(one.cpu_s for one in accounts) / seconds
    print(
        f"{title}: {len(accounts)} sources, {100 * share:.3f} % of a core, goal under {100 * SHARE:g} %: "
        f"{'held' if share < SHARE else 'not held'}"
    )
    for one in sorted(accounts, key=lambda one: -one.cpu_s):
        print(f"  {told(one)}")
    return share < SHARE


def told(one: Account) -> str:
    """A source in a line."""
    each = one.cpu_s / max(1, one.readings)
    return (
        f"{one.name}, each {one.period_s:g} s: {one.readings} readings of {each * 1e6:.0f} us CPU, "
        f"late by {one.mean_late_s * 1e3:.2f} ms, at worst {one.worst_late_s * 1e3:.1f} ms, {one.missed} missed"
    )


def noticed(found: Sequence[Source], count: int, seconds: float) -> bool:
    """The rate of a memory read on all CPUs in another process, with the monitor against without."""
    command = [sys.executable, __file__, "--reader", "--seconds", str(seconds)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as reader:
        assert reader.stdin is not None and reader.stdout is not None
        stdin, stdout = reader.stdin, reader.stdout

        def read() -> float:
            stdin.write("read\n")
            stdin.flush()
            return float(stdout.readline())

        def watched() -> float:
            with Monitor(found, time.monotonic()):
                time.sleep(START_S)
                return read()

        def alone() -> float:
            time.sleep(START_S)
            return read()

        ratio = pairs.ratio(pairs.measure(watched, alone, count, "monitor"))
        stdin.close()
    holds = ratio.low <= 1.0 <= ratio.high or ratio.low > 1.0
    narrow = ratio.high / ratio.low - 1 < 2 * pairs.RESOLVABLE
    verdict = "not resolvable here" if not narrow else "held" if holds else "not held"
    print(
        f"memory read with / without the monitor: {ratio.ratio:.4f} ({ratio.low:.4f} to {ratio.high:.4f}, "
        f"{ratio.pairs} pairs), holds 1: {verdict}"
    )
    return holds or not narrow


def read_on_demand(seconds: float) -> int:
    """The reader: a line on stdin asks for a reading, whose rate in B/s is printed."""
    cpus = _native.allowed_cpus()
    team, isa = _native.Team(cpus), choose_isa(None, "read")
    filled = pools.build(10**9, "transparent", None, cpus, team, lambda note: None)
    once = one_pass(team, filled, isa)
    for _ in sys.stdin:
        begun, passes = time.monotonic(), 0
        while time.monotonic() - begun < seconds:
            once()
            passes += 1
        print(passes * filled.bytes / (time.monotonic() - begun), flush=True)
    filled.close()
    return 0


def one_pass(team: object, filled: pools.FilledPool, isa: str) -> Callable[[], None]:
    """Reads the pool once, its sum checked."""
    parts = [[part] for part in filled.parts(len(_native.allowed_cpus()))]

    def read() -> None:
        sums = pools.Checksums(parts)
        sums.see(team.run("read", isa, parts, 4), 4)  # type: ignore[attr-defined]
        if not sums.proof().ok:
            raise SystemExit("the kernel read a wrong sum: no figure is worth anything")

    return read


def draw(root: Path) -> None:
    """The files of a large server."""
    files: dict[str, str] = {
        "proc/meminfo": "MemTotal: 1000000000 kB\n",
        "proc/interrupts": "MCE: " + "0 " * CORES + "\n",
    }
    cpus = "sys/devices/system/cpu"
    for name in ("online", "present", "possible"):
        files[f"{cpus}/{name}"] = f"0-{CORES - 1}\n"
    for cpu in range(CORES):
        package = cpu * PACKAGES // CORES
        files[f"{cpus}/cpu{cpu}/topology/physical_package_id"] = f"{package}\n"
        files[f"{cpus}/cpu{cpu}/topology/thread_siblings_list"] = f"{cpu}\n"
        files[f"{cpus}/cpu{cpu}/cpufreq/scaling_cur_freq"] = "3400000\n"
        for kind in ("core", "package"):
            files[f"{cpus}/cpu{cpu}/thermal_throttle/{kind}_throttle_count"] = "0\n"
    files["proc/cpuinfo"] = "".join(
        f"processor : {cpu}\nvendor_id : GenuineIntel\n\n" for cpu in range(CORES)
    )
    lines = [f"cpu{cpu} 1 0 1 9 0 0 0 0 0 0" for cpu in range(CORES)]
    files["proc/stat"] = (
        "\n".join(["cpu 100 0 100 900 0 0 0 0 0 0", *lines, "intr " + "0 " * 2000, "ctxt 5"]) + "\n"
    )
    chips = [
        *(
            ("coretemp", f"platform/coretemp.{p}", {"temp1_input": "61000", "temp1_label": f"Package id {p}"})
            for p in range(PACKAGES)
        ),
        *(
            ("spd5118", f"pci0000:00/i2c-1/1-{0x50 + m:04x}", {"temp1_input": "41000", "temp1_max": "85000"})
            for m in range(MODULES)
        ),
        *(
            ("nvme", f"pci0000:80/0000:{0x81 + d:02x}:00.0/nvme/nvme{d}", {"temp1_input": "45000"})
            for d in range(DRIVES)
        ),
        ("nct6798", "platform/nct6775.656", {f"fan{place}_input": "5000" for place in range(1, BOARD + 1)}),
    ]
    for number, (name, device, inputs) in enumerate(chips):
        base = f"sys/class/hwmon/hwmon{number}"
        files |= {f"{base}/name": f"{name}\n", f"{base}/device/uevent": device}
        files |= {f"{base}/{key}": f"{value}\n" for key, value in inputs.items()}
    for zone in range(PACKAGES):
        base = f"sys/class/powercap/intel-rapl:{zone}"
        files |= {f"{base}/name": f"package-{zone}\n", f"{base}/energy_uj": "5000000\n"}
        files[f"{base}/max_energy_range_uj"] = "262143328850\n"
    for link in range(LINKS):
        base = f"sys/bus/pci/devices/0000:{link // 8:02x}:{link % 8:02x}.0"
        for name, total in (("correctable", "COR"), ("nonfatal", "NONFATAL"), ("fatal", "FATAL")):
            rows = "".join(f"Row{row} 0\n" for row in range(16))
            files[f"{base}/aer_dev_{name}"] = f"{rows}TOTAL_ERR_{total} 0\n"
    for module in range(MODULES):
        base = f"sys/devices/system/edac/mc/mc{module // 2}"
        files |= {f"{base}/ce_count": "0\n", f"{base}/ue_count": "0\n"}
        files |= {f"{base}/dimm{module % 2}/dimm_{kind}_count": "0\n" for kind in ("ce", "ue")}
    for drive in range(DRIVES):
        base = f"sys/class/block/nvme{drive}n1"
        files |= {f"{base}/size": "7501476528\n", f"{base}/dev": f"259:{drive}\n"}
    counts = " ".join(["0"] * 17)
    files["proc/diskstats"] = "".join(f" 259 {drive} nvme{drive}n1 {counts}\n" for drive in range(DRIVES))
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)


if __name__ == "__main__":
    sys.exit(main())

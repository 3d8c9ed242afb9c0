"""Takes out of the raw files of a machine what names that one machine or its people, keeping what host/ reads.

Serial numbers and asset tags become "x" and UUIDs zeros, of the same length, so that a firmware table keeps its
shape. Names of hosts and users are replaced as whole words, and only where a kernel or an administrator puts
them: in the kernel's release, version and command line, in the paths of control groups, and in what the
firmware calls itself, the system, its boards and its case. Words that readers look for, and makers' names, are
no names of a host, nor is such a word within its name: they decide what a machine is, and name nobody.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from k3gate import mounts
from k3gate.host import counters, identities, pci_config

_TABLES = re.compile(r"sys/firmware/dmi/(?:tables/DMI|entries/[^/]+/raw)")
_FIRMWARE_FILES = re.compile(
    r"sys/(?:class|devices/virtual)/dmi/id/(?:bios_|sys_|product_|board_|chassis_)\w+"
)
_MAC = re.compile(rb"(?<![0-9A-Fa-f:])[0-9A-Fa-f]{2}(?::[0-9A-Fa-f]{2}){5}(?![0-9A-Fa-f:])")
_NO_MAC = b"00:00:00:00:00:00"
_CPUINFO_SERIAL = re.compile(rb"(?m)^(Serial[ \t]*:)[^\n]*$")
_STATUS_LINES = (b"Cpus_allowed", b"Mems_allowed")
_BUILDER = re.compile(r"\([^()\s]+@[^()\s]+\)")
_KERNEL_DEVICE = re.compile(
    r"/dev/(?:nvme\d+n\d+(?:p\d+)?|[sv]d[a-z]+\d*|xvd[a-z]+\d*|md\d+|dm-\d+|pmem\S{1,8})", re.ASCII
)
_POOL = re.compile(r"(sys/fs/btrfs/)([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})")
_DEVICE_UUID = re.compile(r"sys/.*/dm/uuid")
_PCI_CONFIG = re.compile(r"sys/(?:devices|bus/pci)/.*/config")
_HOME = re.compile(r"/(home|Users)/[^/\s]+")
_PLAIN_NAMES = frozenset({"localhost", "localdomain", "host", "local", "(none)", "root", "user"})
# Words by which `virtual` and others tell what a machine is, and makers: in a host's name they name nobody, and
# without them a capture would be judged otherwise.
_MARKS = """
microsoft corporation virtual machine metal bare baremetal vmware virtualbox innotek oracle xen hvm domu parallels
bhyve nutanix ahv google compute engine amazon ec2 aws alibaba cloud ecs openstack droplet vserver tencent cvm vultr
upcloud akamai linode exoscale scaleway digitalocean qemu kvm red hat bochs standard azure hyper hyperv
kubernetes kubepods kubelet libpod podman docker containerd lxc garden nerdctl crio buildkit
linux version generic server system user
dell hpe hewlett packard enterprise lenovo supermicro gigabyte asus asustek asrock intel amd ampere nvidia fujitsu
cisco huawei inspur quanta wiwynn tyan msi
"""
_SPOKEN_WORDS = frozenset(_MARKS.split())
_WORD = re.compile(r"[^\W_]+")
_SHORTEST_NAME = 3
_CONTAINER_NAME = re.compile(r"[0-9a-f]{12,}")
_MOUNT_LINES = 20_000
_GROUP_LINES = 100


class Names:
    """The names of a machine and of its user, and how they are replaced."""

    def __init__(self, hosts: Iterable[str] = (), users: Iterable[str] = ()) -> None:
        words: dict[str, str] = {}
        for host in hosts:
            first, _, domain = host.partition(".")
            words.update((word, _kept(word, "host")) for word in (host, first, domain) if _tells(word))
        words.update((user, _kept(user, "user")) for user in users if _tells(user))
        self._words = {word.lower(): instead for word, instead in words.items()}
        # Docker names a container by the beginning of its id, which goes on in the path of its control group.
        patterns = [
            re.escape(word) if _CONTAINER_NAME.fullmatch(word) else rf"(?<![^\W_]){re.escape(word)}(?![^\W_])"
            for word in sorted(self._words, key=len, reverse=True)
        ]
        self._pattern = re.compile("|".join(patterns), re.I) if patterns else None
        self._mounts: tuple[str, ...] = ("sys/fs/cgroup",)
        self.storage: frozenset[str] = frozenset()
        self._pools: dict[str, str] = {}

    def group(self, text: str) -> str:
        """The path of a control group without the names and without the ids of containers."""
        return self.apply(identities.of_group(text))

    def blank(self, text: bytes) -> bytes:
        """`text` with an "x" for each byte of a name: the same length, so that a firmware table keeps its shape."""
        if self._pattern is None:
            return text
        latin = text.decode("latin-1")
        return self._pattern.sub(lambda match: _kept(match[0], "x" * len(match[0]), "x"), latin).encode(
            "latin-1"
        )

    def apply(self, text: str) -> str:
        """`text` without the names and without the names of home folders."""
        text = _HOME.sub(r"/\1/user", text)
        if self._pattern is None:
            return text
        return self._pattern.sub(lambda match: self._words[match[0].lower()], text)

    def learn_mounts(self, mountinfo: str, storage: Iterable[str] = ()) -> None:
        """Takes note of where control groups are mounted, below which things are named as in proc/self/cgroup, and of
        the mount points of `storage`, whose lines stay."""
        self.storage = frozenset(storage)
        found = {fields[4].strip("/") for fields, _ in _cgroup_mounts(mountinfo)} - {""}
        self._mounts = tuple(sorted({*self._mounts, *found}, key=len, reverse=True))

    def path(self, path: str, *, folder: bool = False) -> str:
        """The path of a file (whose own name stays) or of a folder, as the capture is to have it."""
        for mount in self._mounts:
            if path.startswith(f"{mount}/"):
                group, slash, name = path[len(mount) :].rpartition("/")
                below = self.group(group + slash + name) if folder else self.group(group) + slash + name
                return self.mount(f"/{mount}")[1:] + below
        pool = _POOL.match(path)
        if pool is not None:
            return pool[1] + self._pools.setdefault(pool[2], f"pool{len(self._pools)}") + path[pool.end() :]
        return path

    def mount(self, path: str) -> str:
        """Where a hierarchy of control groups is mounted; that below /sys is the kernel's own name."""
        return path if path.startswith("/sys/") else self.apply(path)


def _tells(name: str) -> bool:
    if len(name) < _SHORTEST_NAME or name.lower() in _PLAIN_NAMES:
        return False
    return not all(word in _SPOKEN_WORDS for word in _WORD.findall(name.lower()))


def _kept(name: str, whole: str, letter: str | None = None) -> str:
    """What stands for a name: `whole`, or where a word in it names nobody, that word and `whole` for the others.

    With `letter`, that for each of their letters.
    """
    if not any(word in _SPOKEN_WORDS for word in _WORD.findall(name.lower())):
        return whole

    def instead(match: re.Match[str]) -> str:
        if match[0].lower() in _SPOKEN_WORDS:
            return match[0]
        return whole if letter is None else letter * len(match[0])

    return _WORD.sub(instead, name)


def clean(path: str, raw: bytes, names: Names) -> bytes:
    """The content of the file at `path` as it goes into a capture."""
    if _TABLES.fullmatch(path):
        return _MAC.sub(_NO_MAC, without_serials(raw, names))
    if _PCI_CONFIG.fullmatch(path):
        return pci_config.without_identity(raw)
    if _FIRMWARE_FILES.fullmatch(path):
        return _MAC.sub(_NO_MAC, names.blank(raw))
    if path == "proc/cpuinfo":
        raw = _CPUINFO_SERIAL.sub(rb"\1 0", raw)
    elif path == "proc/self/status":
        raw = b"".join(line for line in raw.splitlines(keepends=True) if line.startswith(_STATUS_LINES))
    elif path == "proc/sys/kernel/hostname":
        return b"host\n"
    elif _DEVICE_UUID.fullmatch(path):
        # What a mapped device is stands before the first dash: LVM, CRYPT, mpath, part1.
        raw = raw.partition(b"-")[0] + b"-\n"
    elif path in _TEXTS:
        text = raw.decode("utf-8", "surrogateescape")
        raw = _TEXTS[path](text, names).encode("utf-8", "surrogateescape")
    return _MAC.sub(_NO_MAC, raw)


def _command_line(text: str, names: Names) -> str:
    # First as the inventory does it, so that the capture gives the same.
    return names.apply(identities.of_command_line(text.rstrip("\0 \t\r\n"))) + "\n"


def _version(text: str, names: Names) -> str:
    # A kernel of Microsoft's is told by its builder, too.
    return names.apply(
        _BUILDER.sub(lambda at: "(user@microsoft)" if "microsoft" in at[0].lower() else "(user@host)", text)
    )


def _mountinfo(text: str, names: Names) -> str:
    """The mounts of control groups, and those that hold a path that was asked about."""
    lines = []
    for mount in mounts.parse(text) if names.storage else ():
        if mount.point in names.storage:
            # A source names a device of the kernel's own, or a volume that people named.
            source = mount.source if _KERNEL_DEVICE.fullmatch(mount.source) else "none"
            options = [
                one for one in dict.fromkeys(mount.options) if one in ("rw", "ro", "dax", "dax=always")
            ]
            point = names.apply(mount.point).replace("\\", "\\134").replace(" ", "\\040")
            kept = [mount.id, "0", mount.number, "/", point, *options[:1]]
            lines.append(" ".join([*kept, "-", mount.file_system, source, ",".join(options) or "rw"]))
    for fields, kinds in _cgroup_mounts(text):
        kept = [*fields[:3], names.group(fields[3]), names.mount(fields[4]), *fields[5:6]]
        # The options name the controllers; what was mounted may be any word.
        after = [kinds[0], kinds[0], kinds[-1]][: len(kinds)]
        lines.append(" ".join([*kept, "-", *after]))
    return "".join(f"{line}\n" for line in lines)


def _cgroup_mounts(text: str) -> list[tuple[list[str], list[str]]]:
    """The fields before and after the dash of each line that limits.py takes for a mount of control groups."""
    found = []
    for line in text.splitlines()[:_MOUNT_LINES]:
        before, dash, after = line.partition(" - ")
        fields, kinds = before.split(), after.split()
        if dash and len(fields) >= 5 and kinds and kinds[0] in ("cgroup", "cgroup2"):
            found.append((fields, kinds))
    return found


def _groups(text: str, names: Names) -> str:
    lines = [line.split(":", 2) for line in text.splitlines()[:_GROUP_LINES]]
    return "".join(f"{line[0]}:{line[1]}:{names.group(line[2])}\n" for line in lines if len(line) == 3)


def _group(text: str, names: Names) -> str:
    return names.group(text)


def _word(text: str, names: Names) -> str:
    return names.apply(text)


def _interrupts(text: str, names: Names) -> str:
    """The rows that are read; the others name devices and networks."""
    lines = text.splitlines(keepends=True)
    return "".join(line for line in lines if line.strip().partition(":")[0] in counters.INTERRUPT_ROWS)


_TEXTS = {
    "proc/interrupts": _interrupts,
    "proc/cmdline": _command_line,
    "proc/version": _version,
    "proc/self/mountinfo": _mountinfo,
    "proc/self/cgroup": _groups,
    "proc/1/cgroup": _groups,
    "proc/self/cpuset": _group,
    "proc/sys/kernel/osrelease": _word,
}

# Offsets of the string numbers of serial numbers, asset tags, SKU numbers (makers write there what was ordered)
# and of the place in the case, by type (DMTF DSP0134).
_SECRET_STRINGS = {1: (7, 25), 2: (7, 8, 10), 3: (7, 8), 4: (32, 33), 17: (24, 25), 22: (7,), 39: (8, 9)}
# Other numbers of the one machine: the UUID of the system, the serial number of a battery.
_SECRET_BYTES = {1: (8, 24), 22: (16, 18)}
# OEM strings, and how to reach the controller over the network; from 128 on what only the maker understands.
_OPAQUE = frozenset({11, 12, 40, 42, 126, *range(128, 256)})
_CASE, _CASE_PARTS = 3, 19
_END = 127
# What firmware writes where there is no serial number; blanked, a name that shares the text would change.
_NOTHING = re.compile(
    rb"(?i)[ .x0-]*|to be filled by o\.?e\.?m\.?|default string|not (?:specified|available|applicable|provided)"
    rb"|no dimm|no module installed|none|n/?a|unknown|undefined|empty|null"
    rb"|asset ?tag|(?:chassis |system )?serial number"
)


# Firmware, system, boards and case: an administrator may have written the host's name there. Elsewhere the strings
# are the maker's own, and a host called "node0" must not cost the locators of its modules.
_NAMED = frozenset({0, 1, 2, 3})


def without_serials(table: bytes, names: Names | None = None) -> bytes:
    """A firmware table of the same shape without serial numbers, asset tags, UUIDs and `names`; never raises."""
    out = bytearray(table)
    position = 0
    while position + 4 <= len(out):
        kind, length = out[position], out[position + 1]
        end = position + length
        stop = out.find(b"\0\0", end) if length >= 4 and end <= len(out) else -1
        if stop < 0:
            # No structure can be told apart from here on; its header says to the reader what is wrong.
            position += 4
            break
        if kind in _OPAQUE:
            out[position + 4 : end] = bytes(length - 4)
            _blank(out, end, stop, None)
        else:
            _blank(out, end, stop, _secret_strings(out[position:end]))
            low, high = _SECRET_BYTES.get(kind, (length, length))
            high = min(high, length)
            out[position + low : position + high] = bytes(max(0, high - low))
            if kind in _NAMED and names is not None:
                out[end:stop] = names.blank(bytes(out[end:stop]))
        position = stop + 2
        if kind == _END:
            break
    out[position:] = b"x" * (len(out) - position)
    return bytes(out)


def _secret_strings(formatted: bytes | bytearray) -> set[int]:
    """The numbers of those strings of a structure that are to be blanked."""
    kind, length = formatted[0], len(formatted)
    offsets = list(_SECRET_STRINGS.get(kind, ()))
    if kind == _CASE and length > _CASE_PARTS + 1:
        # The SKU number of a case stands behind the list of what is in it: so many parts of so many bytes.
        offsets.append(_CASE_PARTS + 2 + formatted[_CASE_PARTS] * formatted[_CASE_PARTS + 1])
    return {formatted[at] for at in offsets if at < length}


def _blank(out: bytearray, start: int, stop: int, wanted: set[int] | None) -> None:
    """Writes x over the strings of these numbers (None: all) in the strings between `start` and `stop`."""
    at = start
    for number, part in enumerate(bytes(out[start:stop]).split(b"\0"), 1):
        if (wanted is None or number in wanted) and not _NOTHING.fullmatch(part):
            out[at : at + len(part)] = b"x" * len(part)
        at += len(part) + 1

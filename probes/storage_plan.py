"""The cases of the storage probe: pure, from the inventory, a budget, and what was seen of the places.

    pathN.file                       a file of our own is made, where no shards lie at the place
    pathN.direct.BLOCK.tT.qQ         T threads read past the page cache, Q blocks at a time each
    pathN.direct.BLOCK.tT.qQ.nodeM   the same by cores of node M
    pathN.cold.WAY                   through a cold page cache: read, mmap, safetensors
    pathN.course                     a minute and more on end
    pathN.fio.BLOCK.tT.qQ            fio, as the direct case of these numbers
    together.direct.BLOCK.tT.qQ      all places at once, where they lie on different drives
    warm, hash                       from the page cache into fresh memory; k3gate's checksums

N counts the places, from 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import attrs
from attrs import frozen

from k3gate.probes import working_sets as sets
from k3gate.probing.contract import Planned
from k3gate.records import Case, Inventory, LeftOut, LoadPath, NumaNode, Profile, Scalar, StoragePath
from k3gate.units import count, exact_bytes

KIB, MIB = 1 << 10, 1 << 20
WRITE_RATE = 0.4e9
"""B/s, taken for planning: a file is made."""
LEAST_FILE = 64 * MIB
"""A smaller file of our own is refused: a drive's own memory could hold it."""
MOST_OF_FREE = 0.5
"""Of the free space, for a file of our own."""
IN_FLIGHT = 4
"""A place holds at least so many times the bytes that are under way at once."""
SET_UP_SECONDS = 0.15
"""Of a case: opening, looking at what proves it, warming up."""
FIO_SECONDS = 0.5
"""What fio takes besides its run."""
_NO_CACHE_OF_OURS = "loop"


@frozen
class Shape:
    """How a place is read."""

    block: int
    threads: int
    depth: int

    @property
    def name(self) -> str:
        """ "1m.t1.q32"."""
        size = f"{self.block // MIB}m" if self.block >= MIB else f"{self.block // KIB}k"
        return f"{size}.t{self.threads}.q{self.depth}"

    @property
    def in_flight(self) -> int:
        """Bytes under way at once."""
        return self.block * self.threads * self.depth


MAIN = Shape(MIB, 1, 32)
"""Deep enough for a fast drive, and the first to be measured."""
LEAST_SHARDS = IN_FLIGHT * MAIN.in_flight
"""Shards that hold less are no measure of a drive."""
SHORT = (MAIN, Shape(MIB, 4, 16), Shape(128 * KIB, 1, 32), Shape(16 * MIB, 1, 4), Shape(MIB, 1, 1))
LONG = (
    *SHORT,
    *(Shape(128 * KIB, threads, depth) for threads, depth in ((1, 1), (1, 8), (1, 128), (4, 32), (8, 64))),
    *(Shape(MIB, threads, depth) for threads, depth in ((1, 4), (1, 8), (1, 128), (8, 1), (8, 32))),
    *(Shape(16 * MIB, threads, depth) for threads, depth in ((1, 1), (1, 16), (4, 4))),
)
BESIDE = (MAIN, Shape(128 * KIB, 1, 32), Shape(16 * MIB, 1, 4))
"""What fio is asked too."""
WAYS = {
    "read": "reads {what} in pieces of 1 MiB",
    "mmap": "copies {what} out of a mapping",
    "safetensors": "copies {what}, tensor by tensor in the order of the files, into fresh memory, as loaders do",
}


def plan(probe: str, inventory: Inventory, profile: Profile, peer: bool) -> Planned:
    """Cases, most important first, and what is left out. `peer`: fio is installed."""
    return _Planner(probe, inventory, profile, peer).planned()


def loads(probe: str, inventory: Inventory, profile: Profile) -> tuple[list[dict[str, Any]], list[LeftOut]]:
    """(the places that were named and can be read beside other work, why others cannot): of each what a worker is told
    of it (`source`) and the drives below it, where they are known."""
    planner = _Planner(probe, inventory, profile, peer=False)
    found: list[dict[str, Any]] = []
    for number, given in enumerate(profile.load_paths, 1):
        if not given.asked:
            continue
        named = planner._worth_reading(number, given)
        lying = planner._lying(named)
        why = _refusal(lying)
        if why is not None:
            planner.left_out.append(LeftOut(probe, f"path{number}", why))
        elif (place := planner._place(number, named, lying)) is not None:
            found.append({"source": place.source, "drives": list(lying.drives)})
    return found, planner.left_out


@frozen
class _Place:
    """A place that can be measured: its number, what is known of it, and what a worker is told of it."""

    number: int
    named: LoadPath
    lying: StoragePath
    bytes: int

    @property
    def source(self) -> dict[str, Any]:
        """For the worker: path, bytes to read, files; scratch: the folder of a file of our own, or None."""
        files: list[dict[str, Any]] = []
        left = self.bytes
        for file in self.named.files:
            if left <= 0:
                break
            files.append(attrs.asdict(file))
            left -= file.bytes
        scratch = None if self.named.files else self.named.folder
        return {"path": self.named.path, "bytes": self.bytes, "files": files, "scratch": scratch}


class _Planner:
    def __init__(self, probe: str, inventory: Inventory, profile: Profile, peer: bool) -> None:
        self.probe, self.inventory, self.profile, self.peer = probe, inventory, profile, peer
        self.long = profile.seconds >= 600
        self.rounds = 3
        self.seconds = 1.0 if self.long else 0.45
        self.left_out: list[LeftOut] = []
        usable = sets.usable_cpus(inventory)
        self.cpus = sets.one_per_core(usable, inventory.cpu.siblings)
        self.nodes = [one for one in inventory.numa.nodes if set(one.cpus) & set(self.cpus)]

    def planned(self) -> Planned:
        if self.profile.seconds < 60:
            reason = "the shortest profile measures bandwidth alone; --profile quick reads from storage too"
            return Planned((), (LeftOut(self.probe, "*", reason),))
        if not self.profile.load_paths:
            reason = "no place is known where weights lie or are to lie: name it with --storage"
            return Planned((), (LeftOut(self.probe, "*", reason),))
        refused: list[Case] = []
        places = []
        for number, given in enumerate(self.profile.load_paths, 1):
            named = self._worth_reading(number, given)
            lying = self._lying(named)
            why = _refusal(lying)
            if why is not None:
                refused.append(self._absent(f"path{number}.refused", named, lying, why))
            elif (place := self._place(number, named, lying)) is not None:
                places.append(place)
        files = [self._file(place) for place in places if place.source["scratch"]]
        together = self._together(places)
        first, rest = [], []
        for place in places:
            scope = "path" if together else "all"
            own = self._of(place, scope, whole=self.long or place is places[0])
            first += own[:1]
            rest += own[1:]
        cases = [*files, *first, *together[:1], *rest, *together[1:]]
        if places:
            cases += self._machine(places[0])
        if not self.long:
            reason = (
                "a drive that slows down for heat does so after a minute; --profile standard reads on end"
            )
            self.left_out += [LeftOut(self.probe, f"path{place.number}.course", reason) for place in places]
        return Planned((*cases, *refused), tuple(self.left_out))

    # --- places ---

    def _lying(self, named: LoadPath) -> StoragePath:
        storage = self.inventory.storage
        for one in storage.paths if storage else ():
            if one.path == named.path:
                return one
        return StoragePath(named.path, "unknown", "unknown", reason="block devices are not told of here")

    def _worth_reading(self, number: int, named: LoadPath) -> LoadPath:
        """The place without its shards where they hold too little to be measured and a file can be made instead."""
        there = sum(file.bytes for file in named.files)
        instead = attrs.evolve(named, files=())
        if not named.files or there >= LEAST_SHARDS or _cannot_make(instead) is not None:
            return named
        reason = (
            f"{count(len(named.files), 'shard')} of {there / 1e6:,.1f} MB at {named.path} are less than the "
            f"{LEAST_SHARDS / 1e6:,.1f} MB that can be measured: a file of its own, in the same folder, is read instead"
        )
        self.left_out.append(LeftOut(self.probe, f"path{number}.shards", reason))
        return instead

    def _place(self, number: int, named: LoadPath, lying: StoragePath) -> _Place | None:
        most = (64 << 30) if self.long else (4 << 30)
        if named.files:
            return _Place(number, named, lying, min(most, sum(file.bytes for file in named.files)))
        wanted = (32 << 30) if self.profile.name == "soak" else (8 << 30) if self.long else (1 << 30)
        reason = _cannot_make(named)
        if reason is not None:
            self.left_out.append(LeftOut(self.probe, f"path{number}.*", reason))
            return None
        return _Place(number, named, lying, min(wanted, _room(named)))

    def _near(self, lying: StoragePath) -> NumaNode | None:
        """The node that all drives of a place belong to, where the machine has several."""
        storage = self.inventory.storage
        found = {drive.node for drive in (storage.drives if storage else ()) if drive.name in lying.drives}
        if len(found) != 1 or len(self.nodes) < 2:
            return None
        return next((node for node in self.nodes if node.id in found), None)

    def _cpus_of(self, node: NumaNode | None) -> list[int]:
        return [] if node is None else [cpu for cpu in self.cpus if cpu in node.cpus]

    # --- cases ---

    def _of(self, place: _Place, scope: str, *, whole: bool) -> list[Case]:
        """The cases of a place, the most important first; of further places a short profile takes few."""
        shapes = LONG if self.long else SHORT if whole else SHORT[:2]
        near = self._near(place.lying)
        fitting = [shape for shape in shapes if place.bytes >= IN_FLIGHT * shape.in_flight]
        for shape in shapes:
            if shape not in fitting:
                reason = (
                    f"{exact_bytes(place.bytes)} at {place.named.path} are less than {IN_FLIGHT} x the "
                    f"{shape.in_flight / 1e6:,.1f} MB that are under way at once"
                )
                self.left_out.append(LeftOut(self.probe, f"path{place.number}.direct.{shape.name}", reason))
        found = [
            self._direct(f"path{place.number}", [place], shape, scope, near, fallback=shape is fitting[0])
            for shape in fitting
        ]
        if not found:
            return []
        ways = [self._way(place, way, scope) for way in (WAYS if whole else ("read",))]
        more = self._nodes(place, fitting[0], near) if whole else []
        fio = [self._fio(place, shape, scope, near) for shape in BESIDE if shape in fitting]
        if not self.peer:
            why = "fio is not installed: `apt-get install fio`, or `dnf install fio`"
            fio = [self._absent(f"path{place.number}.fio", place.named, place.lying, why)] if whole else []
        course = [self._course(place, scope, near)] if self.long and MAIN in fitting else []
        fio = fio if self.long else fio[:1] if whole else []
        return [found[0], *course, *ways, *fio[:1], *found[1:], *more, *fio[1:]]

    def _labels(self, places: Sequence[_Place], way: str, scope: str) -> dict[str, Scalar]:
        drives = sorted({name for place in places for name in place.lying.drives})
        return {
            "scope": scope,
            "path": ", ".join(place.named.path for place in places),
            "asked": all(place.named.asked for place in places),
            "way": way,
            "lies_on": "; ".join(dict.fromkeys(place.lying.summary for place in places)),
            "file_system": ", ".join(dict.fromkeys(place.lying.file_system or "unknown" for place in places)),
            "drives": ", ".join(drives) or None,
            "encrypted": any(place.lying.encrypted for place in places),
            "made": any(not place.named.files for place in places),
            "window_bytes": sum(place.bytes for place in places),
        }

    def _direct(
        self,
        start: str,
        places: Sequence[_Place],
        shape: Shape,
        scope: str,
        node: NumaNode | None,
        *,
        fallback: bool = False,
        suffix: str = "",
    ) -> Case:
        labels = self._labels(places, "direct", scope) | {
            "block_bytes": shape.block,
            "threads": shape.threads * len(places),
            "depth": shape.depth,
            "cpu_node": None if node is None else node.id,
        }
        cpus = self._cpus_of(node)
        who = f"{count(shape.threads, 'thread')}{' of each place' if len(places) > 1 else ''}"
        by = f", on cores of node {node.id}" if node is not None else ""
        title = (
            f"Storage: {who} {'reads' if shape.threads == 1 else 'read'} {_told(places)} past the page cache{by}, "
            f"{count(shape.depth, 'block')} of {_size(shape.block)} at a time"
        )
        return self._case(
            f"{start}.direct.{shape.name}{suffix}",
            title,
            places,
            labels,
            self.seconds,
            {**_of_shape(shape), "kind": "direct", "cpus": cpus, "fallback": fallback},
            memory=shape.in_flight * len(places),
        )

    def _nodes(self, place: _Place, shape: Shape, near: NumaNode | None) -> list[Case]:
        """The same reads by cores of each other node; of many a short profile takes the farthest."""
        if len(self.nodes) < 2:
            return []
        others = [node for node in self.nodes if node is not near]
        if not self.long and near is not None:
            others = [max(others, key=lambda node: (near.distances.get(node.id, 0), node.id))]
        return [
            self._direct(f"path{place.number}", [place], shape, "node", node, suffix=f".node{node.id}")
            for node in others
        ]

    def _together(self, places: Sequence[_Place]) -> list[Case]:
        """All places at once, where no two lie on the same drive."""
        drives = [set(place.lying.drives) for place in places]
        apart = sum(map(len, drives)) == len(set().union(*drives)) if drives else False
        if len(places) < 2 or not all(drives) or not apart:
            return []
        shapes = [MAIN, Shape(MIB, 4, 16)] if self.long else [MAIN]
        return [
            self._direct("together", places, shape, "all", None)
            for shape in shapes
            if all(place.bytes >= IN_FLIGHT * shape.in_flight for place in places)
        ]

    def _way(self, place: _Place, way: str, scope: str) -> Case:
        labels = self._labels([place], way, scope) | {"threads": 1, "block_bytes": MIB}
        title = f"Storage: one thread {WAYS[way].format(what=_told([place]))}; the page cache is cold"
        return self._case(
            f"path{place.number}.cold.{way}",
            title,
            [place],
            labels,
            self.seconds,
            {"kind": "way"},
            memory=64 * MIB,
        )

    def _fio(self, place: _Place, shape: Shape, scope: str, near: NumaNode | None) -> Case:
        labels = self._labels([place], "fio", scope) | {
            "block_bytes": shape.block,
            "threads": shape.threads,
            "depth": shape.depth,
        }
        title = f"Storage: fio reads {_told([place])}, {count(shape.depth, 'block')} of {_size(shape.block)} at a time"
        parameters = {**_of_shape(shape), "kind": "fio"}
        case = self._case(
            f"path{place.number}.fio.{shape.name}",
            title,
            [place],
            labels,
            self.seconds,
            parameters,
            memory=shape.in_flight + 64 * MIB,
        )
        return attrs.evolve(
            case, seconds=case.seconds + FIO_SECONDS, setup_seconds=case.setup_seconds + FIO_SECONDS
        )

    def _course(self, place: _Place, scope: str, near: NumaNode | None) -> Case:
        seconds = 300.0 if self.profile.name == "soak" else 60.0
        labels = self._labels([place], "course", scope) | {
            "block_bytes": MAIN.block,
            "threads": MAIN.threads,
            "depth": MAIN.depth,
        }
        parameters = {**_of_shape(MAIN), "kind": "course", "cpus": self._cpus_of(near), "seconds": seconds}
        title = f"Storage: one thread reads {_told([place])} past the page cache for {seconds:.0f} s on end"
        case = self._case(
            f"path{place.number}.course", title, [place], labels, seconds, parameters, memory=MAIN.in_flight
        )
        return attrs.evolve(case, rounds=1, group=f"course{place.number}", time_limit_s=3 * seconds + 60)

    def _file(self, place: _Place) -> Case:
        labels = self._labels([place], "made", "file")
        title = f"Storage: a file of {exact_bytes(place.bytes)} is made in {place.named.folder}, to be read"
        case = self._case(
            f"path{place.number}.file", title, [place], labels, 0.0, {"kind": "file"}, memory=64 * MIB
        )
        seconds = place.bytes / WRITE_RATE
        return attrs.evolve(
            case,
            rounds=1,
            group="files",
            seconds=seconds,
            setup_seconds=seconds,
            time_limit_s=60 + 20 * seconds,
        )

    def _machine(self, place: _Place) -> list[Case]:
        """What bounds a load besides the drives, and needs none."""
        warm = self._case(
            "warm",
            f"Storage: one thread copies {_told([place])} from the page cache into fresh memory",
            [place],
            self._labels([place], "warm", "cache") | {"threads": 1},
            0.2,
            {"kind": "way"},
            memory=320 * MIB,
        )
        threads = max(1, min(len(self.cpus), 16))
        hashed = self._case(
            "hash",
            f"Storage: {count(threads, 'thread')} compute SHA-256 of bytes in memory, as k3gate's checksums do",
            [],
            {"scope": "machine", "way": "hash", "threads": threads},
            0.2,
            {"kind": "way", "threads": threads},
            memory=32 * MIB * threads,
        )
        return [warm, hashed]

    def _absent(self, name: str, named: LoadPath, lying: StoragePath, why: str) -> Case:
        labels: dict[str, Scalar] = {
            "path": named.path,
            "asked": named.asked,
            "file_system": lying.file_system,
            "lies_on": lying.summary,
        }
        title = f"Storage: {named.path} ({lying.summary})"
        return Case(
            self.probe, name, title, "refused", {"kind": "absent", "why": why}, 0.01, 0, 1, labels=labels
        )

    def _case(
        self,
        name: str,
        title: str,
        places: Sequence[_Place],
        labels: dict[str, Scalar],
        seconds: float,
        parameters: dict[str, Any],
        *,
        memory: int,
    ) -> Case:
        sources = [place.source for place in places]
        own = [source["scratch"] for source in sources if source["scratch"]]
        whole = {**parameters, "sources": sources, "scratch": own}
        group = name.partition(".")[0]
        # A slow drive, or a file that is made first after all, must not end a round.
        made = sum(place.bytes for place in places if not place.named.files)
        limit = 60.0 + 10 * seconds + 20 * made / WRITE_RATE
        return Case(
            self.probe,
            name,
            title,
            group,
            whole,
            seconds + SET_UP_SECONDS,
            memory,
            self.rounds,
            SET_UP_SECONDS,
            limit,
            labels,
        )


def _room(named: LoadPath) -> int:
    """Bytes of the largest file that may be made at a place."""
    return int((named.free_bytes or 0) * MOST_OF_FREE) // MIB * MIB


def _cannot_make(named: LoadPath) -> str | None:
    """Why no file can be made at a place without shards, and what to do; None where one can."""
    if named.read_only:
        return (
            f"the file system at {named.path} is read-only and no shards lie there: put the checkpoint there, "
            "or name another folder with --storage"
        )
    if not named.writable:
        return (
            f"no file may be made in {named.path} and no shards lie there: run as a user who may write there, or "
            "name another folder with --storage"
        )
    if _room(named) < LEAST_FILE:
        return (
            f"half of the {exact_bytes(named.free_bytes or 0)} that are free at {named.path} are less than the "
            f"{exact_bytes(LEAST_FILE)} of the smallest file that is worth reading: free some space, or name "
            "another folder with --storage"
        )
    return None


def _refusal(lying: StoragePath) -> str | None:
    """Why a place is no storage, and what to do; None where it is some."""
    if lying.kind == "memory":
        return f"{lying.summary}: {lying.reason or 'this is RAM'}: name a folder on a drive with --storage"
    if any(layer.kind == _NO_CACHE_OF_OURS for layer in lying.layers):
        return (
            "it lies on a loop device, whose file the kernel may hold in memory unseen: name the folder of that file "
            "with --storage"
        )
    return None


def _of_shape(shape: Shape) -> dict[str, Any]:
    return {"block": shape.block, "threads": shape.threads, "depth": shape.depth}


def _size(block: int) -> str:
    return f"{block // MIB} MiB" if block >= MIB else f"{block // KIB} KiB"


def _told(places: Sequence[_Place]) -> str:
    parts = []
    for place in places:
        files = place.source["files"]
        what = count(len(files), "shard") if files else "a file of its own"
        parts.append(f"{what} at {place.named.path}")
    return " and ".join(parts)

"""What each case of the PCIe probe measures in a worker. Every figure's bytes are compared, or it is withheld."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from typing import Any

import attrs
from attrs import define

from k3gate import links, metrics
from k3gate.errors import ProbeError
from k3gate.probes import pcie_clocks, pcie_cuda, pcie_memory, pcie_plan
from k3gate.probes.pcie_clocks import ClockWatch
from k3gate.probes.pcie_copies import SAMPLES, Copies, Lane, Watch
from k3gate.probes.pcie_driver import Device, Driver
from k3gate.probes.pcie_links import LinkWatch
from k3gate.probes.pcie_memory import Arrived, DeviceMemory, HostMemory
from k3gate.probes.pcie_watch import Watches
from k3gate.probing.contract import Context, SampleToken
from k3gate.probing.outcomes import join_proofs
from k3gate.records import Case, Labels, Metric, MetricDeclaration, Proof, Scalar, State
from k3gate.units import quantity

IN, OUT = "host_to_device", "device_to_host"
_SAMPLE_SECONDS = 0.01


@define
class Setting:
    """What a case works with: devices in the order of its parameters, and host memory for each or for all."""

    case: Case
    context: Context
    driver: Driver
    devices: list[Device]
    memory: list[HostMemory]
    watch: LinkWatch
    clocks: ClockWatch | None = None
    awake: bool = False
    window: tuple[float, float] | None = None

    @property
    def device(self) -> Device:
        """The first device."""
        return self.devices[0]

    def copies(self, *lanes: Lane, over_links: bool = True) -> Copies:
        """These lanes, whose links are watched; the first of a case wake them up."""
        watches: list[Watch] = [self.watch] if over_links else []
        watches += [self.clocks] if self.clocks is not None else []
        made = Copies(self.context, self.driver, lanes, Watches(*watches), awake=self.awake)
        self.awake = True
        return made


def measure(case: Case, context: Context) -> Iterator[Metric]:
    """One round of a case that copies. `parameters`: kind, devices, memory (source, sink, cpus), and of `loaded`
    stream."""
    kind = str(case.parameters["kind"])
    driver: Driver = context.share("pcie driver", pcie_cuda.driver, lambda one: one.close())
    devices: list[Device] = [driver.device(address) for address in case.parameters["devices"]]
    context.heartbeat("a GPU is open")
    memory = [
        pcie_memory.of_node(context, driver, place, one["source"], one["sink"], locked=kind != "pageable")
        for place, one in enumerate(case.parameters["memory"])
    ]
    watch = LinkWatch(case.parameters["devices"])
    nvml = context.share("nvml", pcie_clocks.library)
    clocks = None if nvml is None else ClockWatch(case.parameters["devices"], nvml)
    try:
        yield from _KINDS[kind](Setting(case, context, driver, devices, memory, watch, clocks))
        for address in case.parameters["devices"]:
            seen = watch.metric(context, address)
            # Within the GPU nothing passes over its link.
            if seen is not None and kind != "device":
                yield seen
            slowed = clocks.metric(context, address) if clocks is not None else None
            if slowed is not None:
                yield slowed
    finally:
        watch.close()
        if clocks is not None:
            clocks.close()


def _cell(setting: Setting) -> Iterator[Metric]:
    """Each way alone."""
    memory, context = setting.memory[0], setting.context
    size = pcie_memory.pinned_size(memory, pcie_plan.COPY_BYTES)
    kept = {key: setting.case.labels[key] for key in ("device", "memory_node")}
    yield context.metric(
        metrics.PCIE_PINNED,
        [context.sample(memory.pinned, 0.0)],
        {**kept, "limit_bytes": context.inventory.limits.memlock_bytes},
        reason=memory.refusal,
    )
    for direction in (IN, OUT):
        yield from _flow(setting, direction, size, context.seconds / 2)


def _both(setting: Setting) -> Iterator[Metric]:
    """Each way while the other is under way. A case of its own, as one that fails decides nothing of the others."""
    size = pcie_memory.pinned_size(setting.memory[0], pcie_plan.COPY_BYTES)
    for direction in (IN, OUT):
        yield from _flow(setting, direction, size, setting.context.seconds / 2, together=True)


def _sizes(setting: Setting) -> Iterator[Metric]:
    largest = pcie_memory.pinned_size(setting.memory[0], pcie_plan.COPY_BYTES)
    sizes = [size for size in pcie_plan.SIZES if size <= largest]
    for size, direction in itertools.product(sizes, (IN, OUT)):
        yield from _flow(setting, direction, size, setting.context.seconds / (2 * len(sizes)))


def _flow(
    setting: Setting, direction: str, size: int, seconds: float, *, together: bool = False
) -> Iterator[Metric]:
    """Copies of locked memory in one direction, beside the other one or alone: rate, and share of the link."""
    memory, device = setting.memory[0], setting.device
    with DeviceMemory(device, [size, size]) as (into, out_of):
        _sent(device, out_of, memory.address(memory.source), size)
        memory.spoil(size)
        lanes = {IN: _lane(device, memory, into, size, IN), OUT: _lane(device, memory, out_of, size, OUT)}
        chosen = [lanes[direction]]
        if together:
            chosen.append(attrs.evolve(lanes[OUT if direction == IN else IN], share=2))
        copies = setting.copies(*chosen)
        samples = copies.rates(seconds)
        setting.window = copies.window
        arrived = Arrived(memory, device, size)
        # The sink is compared before it takes what comes back from the device.
        if together or direction == OUT:
            arrived.at_host()
        if together or direction == IN:
            arrived.at_device(into)
        proofs = [arrived.proof(), memory.placement(), copies.gated()]
        proofs += [copies.overlapped()] if together else []
    labels = {**setting.case.labels, "direction": direction, "together": together, "memory": "pinned"}
    labels |= {"bytes": size, "gated": True}
    yield from _rated(setting, [device.address], samples, labels, proofs)
    setting.watch.keep()


def _sent(device: Device, place: int, source: int, size: int) -> None:
    """The source's pattern to the device, before anything is timed."""
    stream = device.stream()
    device.copy_in(place, source, size, stream)
    device.wait(stream)


def _rated(
    setting: Setting,
    addresses: Sequence[str],
    samples: Sequence[SampleToken],
    labels: dict[str, Scalar],
    proofs: list[Proof],
) -> Iterator[Metric]:
    """The rate, and its share of what the links under load can carry."""
    seen = [setting.watch.state(address) for address in addresses]
    rates = [links.bytes_per_s(one.gt_per_s, one.width) if one is not None else None for one in seen]
    limit = sum(rate for rate in rates if rate is not None) if None not in rates else None
    if limit is not None:
        proofs.append(_ceiling(samples, limit))
    yield figure(setting.context, metrics.PCIE_COPY, samples, labels, proofs)
    if labels["scope"] not in ("cell", "both", "loaded", "all") or (
        limit is None and labels["scope"] != "cell"
    ):
        return
    if limit is None:
        reason = "the link was not seen at work: neither end tells its lanes and rate in sysfs"
        yield setting.context.metric(metrics.PCIE_SHARE, [], labels, proofs, State.NOT_PRESENT, reason)
        return
    shares = [attrs.evolve(one, value=one.value / limit) for one in samples]
    yield figure(setting.context, metrics.PCIE_SHARE, shares, labels, proofs)


def _ceiling(samples: Sequence[SampleToken], limit: float) -> Proof:
    """The proof "ceiling": no more came than the lanes can carry."""
    highest = max(one.value for one in samples)
    told = f"{quantity(highest, 'B/s')} at most, of the {quantity(limit, 'B/s')} that the lanes carry in one direction"
    if highest > limit:
        return Proof("ceiling", False, f"{told}: above the physical limit, a fault of the measurement")
    return Proof("ceiling", True, told)


def figure(
    context: Context,
    declaration: MetricDeclaration,
    samples: Sequence[SampleToken],
    labels: Labels,
    proofs: Sequence[Proof],
) -> Metric:
    """A metric, withheld where a proof is false."""
    wrong = next((proof for proof in proofs if proof.ok is False), None)
    if wrong is not None:
        reason = f"withheld: {wrong.name}: {wrong.detail}"
        return context.metric(declaration, [], dict(labels), proofs, State.FAILED, reason)
    return context.metric(declaration, samples, dict(labels), proofs)


def _trip(setting: Setting) -> Iterator[Metric]:
    """A token's activations: from the GPU to host memory and back, a row a layer, one after another."""
    memory, device, context = setting.memory[0], setting.device, setting.context
    row, rows = pcie_plan.TRIP_BYTES, pcie_plan.TRIPS
    size = pcie_memory.pinned_size(memory, row * rows)
    if size < row * rows:
        raise ProbeError(f"{row * rows:,} bytes of host memory could not be locked: {memory.refusal}")
    source, sink = memory.address(memory.source), memory.address(memory.sink)
    with DeviceMemory(device, [size, size]) as (into, out_of):
        _sent(device, out_of, source, size)
        places = itertools.cycle(range(0, size, row))

        def pair(stream: Any, between: Callable[[], None] = lambda: None) -> None:
            place = next(places)
            device.copy_out(sink + place, out_of + place, row, stream)
            between()
            device.copy_in(into + place, source + place, row, stream)

        copies = setting.copies(Lane(device, pair, 2 * row))
        memory.spoil(size)
        queued = copies.times(rows)
        arrived = Arrived(memory, device, size)
        arrived.at_host()
        arrived.at_device(into)
        proofs = [arrived.proof(), memory.placement()]
        yield from _trips(setting, queued, "queued", [*proofs, copies.gated()])
        stream = device.stream()
        memory.spoil(size)
        device.fill(into, size, 0)
        called = _called(context, lambda: pair(stream, lambda: device.wait(stream)), stream, device)
        arrived = Arrived(memory, device, size)
        arrived.at_host()
        arrived.at_device(into)
        yield from _trips(setting, called, "called", [arrived.proof(), memory.placement()])
    setting.watch.keep()


def _called(context: Context, pair: Callable[[], None], stream: Any, device: Device) -> list[SampleToken]:
    """Seconds of a token's trips, where the host waits for every copy."""
    found = []
    for number in range(SAMPLES + 1):
        begun, tokens = time.monotonic(), 0
        while tokens == 0 or time.monotonic() - begun < _SAMPLE_SECONDS:
            for _ in range(pcie_plan.TRIPS):
                pair()
                device.wait(stream)
            tokens += 1
        taken = time.monotonic() - begun
        context.heartbeat("copying rows")
        if number:  # the first warms up
            found.append(context.sample(taken / tokens, taken))
    return found


def _trips(
    setting: Setting, tokens: Sequence[SampleToken], way: str, proofs: Sequence[Proof]
) -> Iterator[Metric]:
    labels = {**setting.case.labels, "way": way, "bytes": pcie_plan.TRIP_BYTES}
    single = [attrs.evolve(one, value=one.value / pcie_plan.TRIPS) for one in tokens]
    yield figure(setting.context, metrics.PCIE_TRIP, single, labels, proofs)
    yield figure(setting.context, metrics.PCIE_TOKEN, tokens, {**labels, "trips": pcie_plan.TRIPS}, proofs)


def _together(setting: Setting) -> Iterator[Metric]:
    """All GPUs at once: to them, then from them."""
    pairs = list(zip(setting.devices, setting.memory, strict=True))
    size = min(pcie_memory.pinned_size(memory, pcie_plan.TOGETHER_BYTES) for _, memory in pairs)
    for direction in (IN, OUT):
        with ExitStack() as held:
            places = [held.enter_context(DeviceMemory(device, [size]))[0] for device, _ in pairs]
            lanes = []
            for (device, memory), place in zip(pairs, places, strict=True):
                if direction == OUT:
                    _sent(device, place, memory.address(memory.source), size)
                    memory.spoil(size)
                lanes.append(_lane(device, memory, place, size, direction))
            copies = setting.copies(*lanes)
            samples = copies.rates_together(setting.context.seconds / 2)
            proofs = [copies.gated()]
            for (device, memory), place in zip(pairs, places, strict=True):
                proofs += [_arrived(device, memory, place, size, direction), memory.placement()]
        labels = {**setting.case.labels, "direction": direction, "together": False, "memory": "pinned"}
        labels |= {"bytes": size, "gated": True}
        yield from _rated(
            setting, [one.address for one in setting.devices], samples, labels, [*join_proofs(proofs)]
        )
        setting.watch.keep()


def _arrived(device: Device, memory: HostMemory, place: int, size: int, direction: str) -> Proof:
    """Whether what a lane of this direction copied is what was sent."""
    arrived = Arrived(memory, device, size)
    if direction == OUT:
        arrived.at_host()
    else:
        arrived.at_device(place)
    return arrived.proof()


def _lane(device: Device, memory: HostMemory, place: int, size: int, direction: str) -> Lane:
    source, sink = memory.address(memory.source), memory.address(memory.sink)
    if direction == IN:
        return Lane(device, lambda stream: device.copy_in(place, source, size, stream), size)
    return Lane(device, lambda stream: device.copy_out(sink, place, size, stream), size)


def _loaded(setting: Setting) -> Iterator[Metric]:
    """Copies while the other cores of the node read its memory."""
    from k3gate.probes import sharing, thermal_load

    context, parameters = setting.context, setting.case.parameters
    size = pcie_memory.pinned_size(setting.memory[0], pcie_plan.COPY_BYTES)
    stream = thermal_load.Stream(context, parameters["stream"], sharing.choose_isa(None, "read"))
    loader, ended = thermal_load.Loader(stream), threading.Event()
    loader.start(ended)
    spans: list[tuple[str, float, float]] = []
    found: list[Metric] = []
    try:
        for direction in (IN, OUT):
            # The load is known by whole regions of it.
            time.sleep(thermal_load.REGION_S)
            found += list(_flow(setting, direction, size, context.seconds / 2))
            assert setting.window is not None
            spans.append((direction, *setting.window))
    finally:
        ended.set()
        if loader.thread is not None:
            loader.thread.join(10.0)
    if loader.failure:
        raise ProbeError(loader.failure)
    yield from found
    for direction, begun, until in spans:
        rate = loader.meter.rate(begun, until)
        labels = {**setting.case.labels, "direction": direction}
        yield figure(context, metrics.PCIE_DRAM, [context.sample(rate, 0.0)], labels, stream.proofs())


def _pageable(setting: Setting) -> Iterator[Metric]:
    """Copies of memory that is not locked, by size. The driver may make such a copy while it is called, so that none
    can be queued behind a gate: wall time of the calls is what is told."""
    memory, device, context = setting.memory[0], setting.device, setting.context
    sizes = [size for size in pcie_plan.SIZES if size <= memory.source.bytes]
    stream = device.stream()
    for size, direction in itertools.product(sizes, (IN, OUT)):
        with DeviceMemory(device, [size]) as (place,):
            if direction == OUT:
                _sent(device, place, memory.address(memory.source), size)
            memory.spoil(size)
            lane = _lane(device, memory, place, size, direction)

            def once(lane: Lane = lane) -> None:
                lane.copy(stream)
                device.wait(stream)

            samples = _by_the_clock(setting, once, size, context.seconds / (2 * len(sizes)))
            proofs = [_arrived(device, memory, place, size, direction), memory.placement()]
        labels = {**setting.case.labels, "direction": direction, "together": False, "memory": "pageable"}
        labels |= {"bytes": size, "gated": False}
        yield figure(context, metrics.PCIE_COPY, samples, labels, proofs)
        setting.watch.keep()


def _by_the_clock(setting: Setting, once: Callable[[], None], size: int, seconds: float) -> list[SampleToken]:
    context = setting.context
    found: list[SampleToken] = []
    once()
    until = time.monotonic() + seconds
    setting.watch.forget()
    while len(found) < 3 or (len(found) < SAMPLES and time.monotonic() < until):
        begun, number = time.monotonic(), 0
        while number == 0 or time.monotonic() - begun < _SAMPLE_SECONDS:
            once()
            number += 1
        taken = time.monotonic() - begun
        context.heartbeat("copying")
        found.append(context.sample(number * size / taken, taken))
    return found


def _device(setting: Setting) -> Iterator[Metric]:
    """Copies within the memory of the GPU."""
    memory, device, context = setting.memory[0], setting.device, setting.context
    size = pcie_memory.pinned_size(memory, pcie_plan.COPY_BYTES)
    with DeviceMemory(device, [size, size]) as (place, to):
        _sent(device, place, memory.address(memory.source), size)
        lane = Lane(device, lambda stream: device.copy_within(to, place, size, stream), 2 * size)
        copies = setting.copies(lane, over_links=False)
        samples = copies.rates(context.seconds)
        arrived = Arrived(memory, device, size)
        arrived.at_device(to)
    proofs = [arrived.proof(), copies.gated()]
    limit = device.memory_limit()
    if limit is not None:
        highest = max(one.value for one in samples)
        told = f"{quantity(highest, 'B/s')} at most, of the {quantity(limit, 'B/s')} of its memory on paper"
        proofs.append(Proof("ceiling", highest <= limit, told))
    yield figure(context, metrics.PCIE_DEVICE, samples, {**setting.case.labels, "bytes": size}, proofs)


def _peer(setting: Setting) -> Iterator[Metric]:
    """From the memory of the second GPU into that of the first, which times it."""
    (device, peer), memory, context = setting.devices, setting.memory[0], setting.context
    size = pcie_memory.pinned_size(memory, pcie_plan.TOGETHER_BYTES)
    direct = device.reach(peer)
    with DeviceMemory(peer, [size]) as (place,), DeviceMemory(device, [size]) as (to,):
        _sent(peer, place, memory.address(memory.source), size)
        lane = Lane(device, lambda stream: device.copy_from(to, peer, place, size, stream), size)
        copies = setting.copies(lane)
        samples = copies.rates(context.seconds)
        arrived = Arrived(memory, device, size)
        arrived.at_device(to)
    labels = {
        **setting.case.labels,
        "bytes": size,
        "access": "direct" if direct else "through host memory",
    }
    yield figure(context, metrics.PCIE_PEER, samples, labels, [arrived.proof(), copies.gated()])


_KINDS: dict[str, Callable[[Setting], Iterator[Metric]]] = {
    "copy": _cell,
    "both": _both,
    "trip": _trip,
    "together": _together,
    "loaded": _loaded,
    "pageable": _pageable,
    "sizes": _sizes,
    "device": _device,
    "peer": _peer,
}

"""What a reader sees of storage: how it was read, how long a load takes, and why something is missing."""

from __future__ import annotations

import re
from typing import Any

import attrs
import pytest

from k3gate import metrics
from k3gate.analysis.ladder import ladder
from k3gate.analysis.loading import loading
from k3gate.records import LeftOut, Metric, Outcome, Proof, RunRecord, Sample, State
from k3gate.reports import page

from .test_hostile import PAYLOADS, shape

PROOFS = (Proof("uncached", True, "cold"), Proof("from_drives", True, "100 %"))
SIZE = 1_560_000_000_000


def figure(case: str, name: str, rate: float, times: int = 3, **labels: Any) -> Outcome:
    declaration = metrics.find(name)
    assert declaration is not None
    whole = {"scope": "all", "path": "/models", "asked": True, "lies_on": "ext4 on 2 NVMe drives", **labels}
    samples = tuple(Sample(rate, n % 3, 1, 10.0 + n) for n in range(times))
    spread = (0.98 * rate, 1.02 * rate)
    metric = Metric(
        name, declaration.unit, declaration.better, whole, samples, rate, spread, State.OK, None, PROOFS
    )
    return Outcome("storage", case, State.OK, None, 1.0, 3, (), (metric,), case)


def everything(path: str = "/models") -> tuple[Outcome, ...]:
    one = {"block_bytes": 1 << 20, "threads": 1, "depth": 32, "path": path}
    rate, cpu = figure("path1.direct.1m.t1.q32", "storage.read.rate", 6.5e9, way="direct", **one), None
    cpu = figure("path1.direct.1m.t1.q32", "storage.read.cpu", 7e-12, way="direct", **one)
    many = {**one, "threads": 4, "depth": 16}
    return (
        attrs.evolve(rate, metrics=(*rate.metrics, *cpu.metrics)),
        figure("path1.direct.1m.t4.q16", "storage.read.rate", 6.0e9, way="direct", **many),
        figure("path1.fio.1m.t1.q32", "storage.peer.rate", 6.6e9, way="fio", **one),
        figure("path1.cold.read", "storage.loader.rate", 3.0e9, way="read", path=path),
        figure("path1.cold.safetensors", "storage.loader.rate", 1.3e9, way="safetensors", path=path),
        figure("warm", "storage.cached.rate", 1.5e9, scope="cache", way="warm", path=path),
        figure("hash", "storage.hash.rate", 20e9, scope="machine", way="hash"),
        figure("path1.course", "storage.course.rate", 6.4e9, 12, way="course", **one),
        figure("path1.course.end", "storage.steady.rate", 3.2e9, 1, way="course", **one),
    )


def rendered(sheet: Any, outcomes: tuple[Outcome, ...], left_out: tuple[LeftOut, ...] = ()) -> str:
    run = attrs.evolve(sheet.record.run, left_out=(*sheet.record.run.left_out, *left_out))
    record: RunRecord = attrs.evolve(sheet.record, run=run, outcomes=(*sheet.record.outcomes, *outcomes))
    return page.render(
        record,
        sheet.gate,
        ladder(record, 25e9),
        criteria_text="",
        target_text="",
        loading=loading(record, SIZE),
    )


def words_of(tree: Any, text: str) -> str:
    return re.sub(r"\s+", " ", "".join(tree(text).pieces)).replace("\u00a0", " ")


def test_rates_stand_beside_fio_with_their_cpu_time(small_vm: Any, tree: Any) -> None:
    told = words_of(tree, rendered(small_vm(), everything()))
    assert "Storage (ext4 on 2 NVMe drives) delivers up to 6.50 GB/s" in told
    assert "1 MiB, one thread with 32 under way" in told and "1 MiB, four threads with 16 under way" in told
    assert re.search(r"6\.50 ?6\.37–6\.63 ?6\.60 ?0\.985 ?0\.0070", told), "rate, interval, fio, ratio, CPU"
    assert "Not drawn" not in told or "storage (" not in told.partition("Not drawn")[2][:300]


def test_the_time_of_a_load_is_broken_down_and_leads_to_its_samples(small_vm: Any, tree: Any) -> None:
    text = rendered(small_vm(), everything())
    told = words_of(tree, text)
    assert (
        "Loading takes 8 min 08 s at least, 20 min 00 s as a loader of safetensors reads, bound by copying into memory "
        "by one thread" in told
    )
    part = text[text.index('id="fig-load"') :].partition("</figure>")[0]
    links = re.findall(r'href="#([^"]+)"', part)
    assert len(links) >= 6 and all(f'id="{link}"' in text for link in links)


def test_a_rate_that_falls_is_drawn_over_time(small_vm: Any, tree: Any) -> None:
    text = rendered(small_vm(), everything())
    assert "on end" in words_of(tree, text) and 'aria-labelledby="courset coursed"' in text


@pytest.mark.case("REP-01")
@pytest.mark.parametrize("payload", PAYLOADS)
def test_a_path_is_text_whatever_it_holds(small_vm: Any, tree: Any, payload: str) -> None:
    hostile, harmless = (
        tree(rendered(small_vm(), everything(f"/m{name}"))) for name in (payload, "x" * len(payload))
    )
    assert shape(hostile) == shape(harmless)


def test_what_was_not_read_says_why(small_vm: Any, tree: Any) -> None:
    refused = Outcome("storage", "path1.refused", State.NOT_PRESENT, "tmpfs is memory and no storage", 0.0, 1)
    told = words_of(tree, rendered(small_vm(), (refused,)))
    assert "Storage: not present. Tmpfs is memory and no storage" in told
    left = LeftOut("storage", "*", "the shortest profile measures bandwidth alone")
    told = words_of(tree, rendered(small_vm(), (), (left,)))
    assert "How long loading takes: not run. The shortest profile measures bandwidth alone" in told

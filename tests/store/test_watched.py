"""Series and phases of a run: stored in pieces, read whole, and carried in a bundle."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import pytest

from k3gate.documents import plain, structure
from k3gate.errors import UsageError
from k3gate.records import Phase, RunRecord, Series
from k3gate.store import Store, open_store
from k3gate.store.bundle import export_run, import_bundle

HEAT = Series(
    "temperature",
    "degC",
    {"sensor": "k10temp 0000:00:18.3 Tctl", "of": "0", "limit": 95.5},
    (0.0, 1.5),
    (40.0, None),
)
POWER = Series("power", "W", {"sensor": "rapl package-0", "of": None}, (0.25,), (212.5,))
SERIES = (HEAT, POWER)
PHASES = (Phase("memory", "read.machine", 0, 0.25, 4.75), Phase("memory", "read.machine", 1, 5.0, 9.5))


def test_pieces_come_back_as_one_series(
    store: Store, make_run: Callable[..., Any], make_inventory: Any
) -> None:
    store.begin_run(make_run(), make_inventory())
    store.add_watched("abcd2345", SERIES, PHASES[:1])
    store.add_watched("abcd2345", [attrs.evolve(HEAT, times=(3.0, 4.0), values=(41.0, 42.0))], PHASES[1:])
    record = store.load("abcd2345")
    assert record.phases == PHASES
    heat, power = record.series
    assert (heat.times, heat.values) == ((0.0, 1.5, 3.0, 4.0), (40.0, None, 41.0, 42.0))
    assert heat.labels == HEAT.labels and power == POWER


@pytest.mark.parametrize(
    "bad",
    [
        attrs.evolve(HEAT, values=(1.0,)),
        attrs.evolve(HEAT, values=(1.0, float("nan"))),
        attrs.evolve(HEAT, times=(0.0, float("inf"))),
        attrs.evolve(HEAT, times=(2.0, 1.0)),
        attrs.evolve(HEAT, labels={"limit": float("nan")}),
    ],
)
def test_a_series_that_is_none_is_refused_and_nothing_is_stored(
    store: Store, make_run: Callable[..., Any], make_inventory: Any, bad: Series
) -> None:
    store.begin_run(make_run(), make_inventory())
    with pytest.raises(ValueError, match="series temperature"):
        store.add_watched("abcd2345", [POWER, bad], PHASES)
    record = store.load("abcd2345")
    assert record.series == record.phases == ()


def test_a_run_that_is_not_there_takes_no_series(store: Store) -> None:
    with pytest.raises(UsageError, match="holds no run"):
        store.add_watched("abcd2345", SERIES, PHASES)


def test_a_bundle_carries_them(
    store: Store, make_run: Callable[..., Any], make_inventory: Any, tmp_path: Path
) -> None:
    store.begin_run(make_run(), make_inventory())
    store.add_watched("abcd2345", SERIES, PHASES)
    export_run(store, "abcd2345", tmp_path / "a.k3run")
    with open_store(str(tmp_path / "other.sqlite")) as other:
        import_bundle(other, tmp_path / "a.k3run")
        import_bundle(other, tmp_path / "a.k3run")
        assert other.load("abcd2345") == store.load("abcd2345")


def test_a_record_from_before_there_were_any_is_read(
    store: Store, make_run: Callable[..., Any], make_inventory: Any
) -> None:
    store.begin_run(make_run(), make_inventory())
    document = json.loads(json.dumps(plain(store.load("abcd2345"))))
    del (
        document["series"],
        document["phases"],
        document["inventory"]["storage"],
        document["inventory"]["sensors"],
    )
    record = structure(document, RunRecord)
    assert record.series == () and record.inventory.storage is None

"""The memory probe on machines of several nodes: which cells there are, and where the pages really lay.

Emulated nodes are equally fast, and slow: nothing here asks for a rate.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import pytest
from machine import Answers

pytestmark = [pytest.mark.long, pytest.mark.timeout(800), pytest.mark.xdist_group("emulated")]


def outcomes(answers: Answers, run: str = "measure") -> dict[str, dict[str, Any]]:
    """The memory probe's cases, by name; beside them stand what the run itself and its monitor observed."""
    document = answers.json(run)
    assert document["run"]["status"] == "complete"
    return {one["case"]: one for one in document["outcomes"] if one["probe"] == "memory"}


def cells(pairs: Iterable[tuple[int, int]], cores: tuple[int, ...] = ()) -> set[str]:
    """The names of all cases, for these pairs of CPU node and memory node, and for one core of these nodes."""
    names = {f"read.node{source}.node{target}" for source, target in pairs}
    return names | {f"read.core.node{node}" for node in cores} | {"read.machine", "residency.image"}


def check_reads(measured: dict[str, dict[str, Any]], rounds: int) -> None:
    """Each bandwidth case has a figure whose pages all lay on the node that its name says; by all its proofs."""
    for name, outcome in measured.items():
        if not name.startswith("read."):
            continue
        # Rates jump here, and one round makes no interval; neither makes a figure fail.
        assert outcome["state"] in ("ok", "unstable"), outcome
        # Beside the rate of one core and of all stands the clock that they achieve.
        metric, *clock = outcome["metrics"]
        assert [one["name"] for one in clock] == ["cpu.clock.achieved"] * name.startswith(
            ("read.core", "read.machine")
        )
        proofs = {proof["name"]: proof for proof in metric["proofs"]}
        # No emulated machine shows counters of its memory controllers, which says nothing of a figure.
        counted = proofs.pop("counter_check", None)
        assert counted is None or (counted["ok"] is None and "no counters" in counted["detail"]), counted
        assert all(proof["ok"] is True for proof in proofs.values()), (name, proofs)
        # The ceiling is only known where the firmware's table was read.
        assert set(proofs) - {"ceiling"} == {"placement", "page_size", "pinned", "checksum", "working_set"}
        assert metric["labels"]["isa"] == "avx2"  # the emulator has no AVX-512, whatever this machine has
        assert len(outcome["rounds"]) == rounds
        target = re.fullmatch(r"read\.(?:core|node\d)\.node(\d)", name)
        if target:
            assert metric["labels"]["memory_node"] == int(target[1])
            assert lay_on(outcome) == [target[1]]


def check_latencies(answers: Answers, pairs: Iterable[tuple[int, int]]) -> None:
    """Latency of exactly these pairs of CPU node and memory node, each proven to be of the memory it names."""
    measured = outcomes(answers, "latency")
    assert set(measured) == {f"latency.node{source}.node{target}" for source, target in pairs}
    for name, outcome in measured.items():
        assert outcome["state"] in ("ok", "unstable"), outcome
        (metric,) = outcome["metrics"]
        proofs = {proof["name"]: proof for proof in metric["proofs"]}
        assert all(proof["ok"] is True for proof in proofs.values()), (name, proofs)
        assert set(proofs) == {"placement", "page_size", "pinned", "checksum", "working_set"}
        labels = metric["labels"]
        assert f"latency.node{labels['cpu_node']}.node{labels['memory_node']}" == name
        assert labels["placement"] == ("local" if labels["cpu_node"] == labels["memory_node"] else "remote")
        assert lay_on(outcome) == [str(labels["memory_node"])]
        assert metric["median"] > 0


def lay_on(outcome: dict[str, Any]) -> list[str]:
    """The nodes on which the pages of a case's pools lay."""
    proof = next(p for p in outcome["metrics"][0]["proofs"] if p["name"] == "placement")
    assert proof["ok"] is True, proof
    return re.findall(r"all \d+ sampled pages on node (\d)", proof["detail"])


def test_cpus_without_memory_read_that_of_other_nodes(cpus_without_memory: Answers) -> None:
    measured = outcomes(cpus_without_memory)
    pairs = [(source, target) for source in (0, 1, 2) for target in (0, 1)]
    assert set(measured) == cells(pairs)
    check_reads(measured, rounds=3)
    left_out = cpus_without_memory.json("measure")["run"]["left_out"]
    assert [one["reason"] for one in left_out if one["case"] == "read.*.node2"] == ["node 2 has no memory"]
    assert lay_on(measured["read.machine"]) == lay_on(measured["residency.image"]) == ["0", "1"]
    assert measured["read.machine"]["metrics"][0]["labels"]["threads"] == 3


def test_latency_is_that_of_each_node_to_each_that_has_memory(
    cpus_without_memory: Answers, memory_without_cpus: Answers
) -> None:
    check_latencies(cpus_without_memory, [(source, target) for source in (0, 1, 2) for target in (0, 1)])
    check_latencies(memory_without_cpus, [(source, target) for source in (0, 1) for target in (0, 1, 2)])


def test_three_rounds_make_an_interval(cpus_without_memory: Answers) -> None:
    reads = {name: one for name, one in outcomes(cpus_without_memory).items() if name.startswith("read.")}
    for name, outcome in reads.items():
        metric = outcome["metrics"][0]
        low, high = metric["interval"]
        assert low <= metric["median"] <= high, name


def test_nodes_that_have_no_memory_or_no_figures(cpus_without_memory: Answers) -> None:
    document = cpus_without_memory.json("host")
    nodes = document["numa"]["nodes"]
    assert [(node["id"], node["cpus"], bool(node["memory_bytes"])) for node in nodes] == [
        (0, [0], True),
        (1, [1], True),
        (2, [2], False),
    ]
    assert [node["kind"] for node in nodes[:2]] == ["dram", "dram"]
    assert nodes[2]["distances"] == {"0": 31, "1": 17, "2": 10}
    assert all(node["performance"] == {} and node["nearest"] is None for node in nodes)
    told = document["provenance"]["numa.nodes.performance"]
    assert (told["state"], told["reason"]) == ("not_present", "the firmware tells none (HMAT)")


def test_memory_without_cpus_is_read_from_each_node_that_has_some(memory_without_cpus: Answers) -> None:
    measured = outcomes(memory_without_cpus)
    pairs = [(source, target) for source in (0, 1) for target in (0, 1, 2)]
    assert set(measured) == cells(pairs, cores=(0, 1))
    check_reads(measured, rounds=1)
    # Of unknown kind, node 2 is no place for the image, and no part of the machine's own rate.
    assert lay_on(measured["read.machine"]) == lay_on(measured["residency.image"]) == ["0", "1"]


def test_what_the_firmware_tells_of_memory_without_cpus(memory_without_cpus: Answers) -> None:
    document = memory_without_cpus.json("host")
    nodes = document["numa"]["nodes"]
    assert [node["cpus"] for node in nodes] == [[0, 1], [2], []]
    assert [node["kind"] for node in nodes] == ["dram", "dram", "unknown"]
    assert [node["nearest"] for node in nodes] == [None, None, 1]
    assert nodes[2]["distances"] == {"0": 31, "1": 17, "2": 10}
    # As the nearest CPUs reach it; the kernel writes a GiB as 1,024 MB.
    for node, latency, bandwidth in zip(nodes, (90, 90, 250), (100, 100, 20), strict=True):
        assert node["performance"]["read_latency"] == pytest.approx(latency * 1e-9)
        assert node["performance"]["read_bandwidth"] == bandwidth * 1024e6
    assert "20.5 GB/s" in document["provenance"]["numa.nodes.2.kind"]["reason"]
    found = {finding["code"]: finding for finding in document["findings"]}
    assert found["nodes_without_cpus"]["observed"].startswith("node 2:")


def test_an_offline_cpu_is_named_and_not_used(memory_without_cpus: Answers) -> None:
    document = memory_without_cpus.json("host")
    assert (document["cpu"]["offline"], document["cpu"]["online"]) == ([3], [0, 1, 2])
    finding = next(one for one in document["findings"] if one["code"] == "offline_cpus")
    assert finding["observed"] == "offline: 3"
    measured = outcomes(memory_without_cpus)
    threads = {name: one["metrics"][0]["labels"]["threads"] for name, one in measured.items()}
    assert (threads["read.machine"], threads["read.node0.node0"], threads["read.node1.node1"]) == (3, 2, 1)


def test_every_other_kind_of_case_completes_with_its_proofs(memory_without_cpus: Answers) -> None:
    """One of each, in one round: what it walks lay where its name says, and what it read or stored was right."""
    measured = outcomes(memory_without_cpus, "others")
    assert set(measured) == {
        *(
            "staircase.node0",
            "loaded.node0",
            "read.interleaved",
            "read.4k.node0",
            "copy.node0",
            "copy_nt.node0",
        ),
        *("experts.machine", "experts.node0", "experts.node1"),
    }
    for name, outcome in measured.items():
        assert outcome["state"] in ("ok", "unstable"), (name, outcome["reason"])
        assert outcome["metrics"], name
        for metric in outcome["metrics"]:
            proofs = {proof["name"]: proof["ok"] for proof in metric["proofs"]}
            assert False not in proofs.values(), (name, metric["proofs"])
            assert proofs["pinned"] is True and metric["median"] > 0
        # Smaller steps of a staircase are of a part of the pool alone.
        assert proofs["placement"] is True and proofs["checksum"] is True, (name, metric["proofs"])
        if name.endswith(".node0") or ".node0." in name:
            # Under load there are two pools, the chain's and the loaders'.
            assert set(lay_on_last(outcome)) == {"0"}
    assert lay_on_last(measured["read.interleaved"]) == ["0", "1"]


def lay_on_last(outcome: dict[str, Any]) -> list[str]:
    """The nodes on which the pages of a case's last figure lay."""
    return lay_on({"metrics": outcome["metrics"][-1:]})

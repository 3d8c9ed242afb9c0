"""The report page: what a reader sees, that every link leads somewhere, that nothing comes from outside."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

import attrs
import pytest

from k3gate import units
from k3gate.records import (
    Better,
    Metric,
    NumaNode,
    Outcome,
    Proof,
    RunStatus,
    State,
    Verdict,
)


def test_the_first_page_tells_the_decision_its_reasons_and_the_machine(bare_metal: Any, tree: Any) -> None:
    text = bare_metal().page()
    seen = tree(text).text
    first = seen[: seen.index("Evidence for the engineer")]
    assert "Decision: may this machine be bought for Kimi K3? Not proven Do not order yet." in first
    assert "38 of 43 checks lack evidence" in first
    assert "node r17, lot 2: 2 × 64 cores, EXAMPLE 9X55 64-Core Processor, 1,510 GiB usable memory" in first
    assert "Kind Bare metal" in first
    assert "hybrid; 4 sequences of 32,768 tokens; trunk on GPUs; decode at least 5 tokens/s" in first
    assert "9 December 2026, 10:04 to 10:24 (UTC), profile standard" in first
    assert "At most 36 tokens/s for one sequence, against a target of at least 5" in first
    assert (
        "A ceiling from measured read bandwidth, the upper end of its interval, not an expectation" in first
    )
    assert "Not known. The decode replay has not run" in first
    for name in ("Checkpoint", "Runtime", "Quantization", "Prototype", "Correctness", "Roofline", "BOM"):
        assert name in first
    assert "Decision of the approver" in first
    assert re.search(r"\.signoff,\.paper\{display:none\}", text), "the approver's box is for paper only"


def test_a_ceiling_is_no_lower_than_the_interval_and_says_when_it_was_unstable(
    bare_metal: Any, tree: Any
) -> None:
    """A figure that says "at most" must hold; an unstable reading does not pass for a sound one."""
    run = bare_metal()
    metric = next(
        (o, m)
        for o in run.record.outcomes
        for m in o.metrics
        if m.name == "memory.bandwidth.read" and m.labels.get("scope") == "machine"
    )
    outcome, read = metric
    wide = attrs.evolve(read, interval=(read.median * 0.5, read.median * 1.5), state=State.UNSTABLE)
    outcomes = tuple(attrs.evolve(o, metrics=(wide,)) if o is outcome else o for o in run.record.outcomes)
    seen = tree(attrs.evolve(run, record=attrs.evolve(run.record, outcomes=outcomes)).page()).text
    assert "At most 54 tokens/s for one sequence" in seen
    assert "That reading was unstable." in seen


def test_a_waived_fail_is_said_on_page_one_and_shows_both_marks(bare_metal: Any, tree: Any) -> None:
    text = bare_metal().page()
    seen = tree(text).text
    assert (
        "One check failed and was waived (W1: Remote against local bandwidth). "
        "Without that waiver the decision would be fail." in seen
    )
    row = text[text.index("0.388–0.397") :]
    row = row[: row.index("</tr>")]
    assert row.index("#m-fail") < row.index("#m-waived")
    assert "J. Brandt, head of infrastructure" in seen
    assert "no, it lapsed" in seen, "a waiver that no check carries is shown as lapsed"


def test_a_failed_residency_names_capacity_with_its_arithmetic(small_vm: Any, tree: Any) -> None:
    seen = tree(small_vm().page()).text
    assert "Fail Do not order this machine for this target: check 4.1 (residency) fails." in seen
    assert (
        "Capacity. The image needs 1,447.4 GB; this machine may use 24.7 GB, 1,422.7 GB too little." in seen
    )
    assert "Virtual machine (kvm), limited to 24.0 GiB of memory" in seen
    assert "The target wants 1,560.9 GB; this process may use 24.7 GB" in seen


@pytest.mark.parametrize("nodes", [1, 4, 9])
def test_no_id_occurs_twice_and_every_link_has_a_target(bare_metal: Any, tree: Any, nodes: int) -> None:
    seen = tree(bare_metal(nodes).page())
    assert [name for name, times in Counter(seen.ids).items() if times > 1] == []
    assert len(seen.links) > 100
    assert {link for link in seen.links if link[1:] not in seen.ids or link[0] != "#"} == set()
    labelled = [a["aria-labelledby"] for _, a in seen.elements if "aria-labelledby" in a]
    assert {part for names in labelled for part in names.split()} <= set(seen.ids)


def test_every_check_leads_to_its_evidence_or_to_what_is_missing(small_vm: Any, tree: Any) -> None:
    text = small_vm().page()
    rows = re.findall(r'<tr class="check.*?</tr>', text, re.S)
    assert len(rows) == 43
    for row in rows:
        wanted = "#n" if "#m-unproven" in row else "#"
        assert re.search(rf'data-l="Evidence".*<a href="{wanted}', row, re.S), row


def test_the_page_takes_nothing_from_outside(bare_metal: Any, tree: Any) -> None:
    text = bare_metal().page()
    seen = tree(text)
    tags = {tag for tag, _ in seen.elements}
    assert not tags & {"script", "link", "img", "iframe", "object", "embed", "form", "input", "base"}
    policy = [a["content"] for tag, a in seen.elements if tag == "meta" and "http-equiv" in a]
    assert policy == ["default-src 'none'; style-src 'unsafe-inline'"]
    assert not any("src" in a or any(key.startswith("on") for key in a) for _, a in seen.elements)
    style = text[text.index("<style>") : text.index("</style>")]
    assert "@import" not in style
    assert "url(" not in re.sub(r"url\(#(hatch-ink|hatch-data|dots)\)", "", style)


def test_every_verdict_mark_stands_before_its_word(bare_metal: Any) -> None:
    text = bare_metal().page()
    marks = re.findall(r'<use href="#m-(\w+)"/></svg>([^<]*)', text)
    assert len(marks) > 50
    heading, rest = marks[0], marks[1:]
    assert heading == ("unproven", "Not proven")
    assert all(mark == word.strip() for mark, word in rest)


def test_unknown_is_a_word(small_vm: Any, tree: Any) -> None:
    seen = tree(small_vm().page()).text
    for word in ("None", "nan", "Undefined", "State."):
        assert not re.search(rf"\b{re.escape(word)}", seen), word
    assert "Governor" not in seen
    assert "Frequency governor unknown" in seen


def test_a_rung_that_was_not_measured_stays_with_its_reason(small_vm: Any, tree: Any) -> None:
    seen = tree(small_vm().page()).text
    for title in ("Paper", "Measured read", "Expert-sized reads", "Decode replay", "Running runtime"):
        assert title in seen
    assert "Memory reads at 23.2 GB/s; its paper rate is not known" in seen
    assert "/sys/firmware/dmi/tables/DMI: root only" in seen


def test_the_matrix_shows_memoryless_and_missing_cells_in_words(bare_metal: Any, tree: Any) -> None:
    sheet = bare_metal()
    nodes = [attrs.evolve(n, memory_bytes=0) if n.id == 3 else n for n in sheet.record.inventory.numa.nodes]
    outcomes = tuple(
        attrs.evolve(o, metrics=(), state=State.FAILED, reason="the worker was killed by signal 9")
        if o.case == "read.node0.node1"
        else o
        for o in sheet.record.outcomes
        if not (o.case.startswith("read.node") and o.case.endswith("node3"))
    )
    numa = attrs.evolve(sheet.record.inventory.numa, nodes=tuple(nodes))
    record = attrs.evolve(
        sheet.record, outcomes=outcomes, inventory=attrs.evolve(sheet.record.inventory, numa=numa)
    )
    text = attrs.evolve(sheet, record=record).page()
    matrix = text[text.index('id="fig-numa"') : text.index('id="fig-rates"')]
    assert matrix.count("no memory") == 4
    assert re.search(r'<td class="no"><a href="#n\d+">failed</a></td>', matrix) or "not run" in matrix
    assert "The worker was killed by signal 9" in tree(text).text


def test_above_eight_nodes_the_matrix_is_split_by_socket(bare_metal: Any) -> None:
    text = bare_metal(9).page()
    matrix = text[text.index('id="fig-numa"') : text.index('id="fig-rates"')]
    assert matrix.count("<table") == 3
    heads = re.findall(r'<th scope="colgroup" colspan="(\d)">memory of socket (\d)', matrix)
    assert heads == [("4", "0"), ("4", "1"), ("1", "2")]
    assert len(re.findall(r'<td class="bw', matrix)) == 81


def test_a_figure_without_data_is_one_line_with_state_and_reason(small_vm: Any, tree: Any) -> None:
    sheet = small_vm()
    outcomes = (Outcome("memory", "read.core.node0", State.NOT_PERMITTED, "mbind is forbidden here", 0.1, 3),)
    seen = tree(attrs.evolve(sheet, record=attrs.evolve(sheet.record, outcomes=outcomes)).page())
    assert "One core, one node, the whole machine: not permitted. Mbind is forbidden here." in seen.text
    assert "Bandwidth from every node to every node: not run." in seen.text
    assert "Not permitted. Mbind is forbidden here" in seen.text
    assert "This run stored no sample." in seen.text


def test_a_run_that_did_not_complete_has_a_banner_and_is_no_evidence(bare_metal: Any, tree: Any) -> None:
    sheet = bare_metal()
    run = attrs.evolve(sheet.record.run, status=RunStatus.INTERRUPTED, ended=None)
    seen = tree(attrs.evolve(sheet, record=attrs.evolve(sheet.record, run=run)).page()).text
    assert "This run is interrupted. Its figures are shown as they were stored" in seen
    assert "k3gate run --resume 7f3k2m9q" in seen
    assert "Do not order. This run is interrupted, so none of its figures counts as evidence." in seen


def test_every_sample_stands_in_the_page(small_vm: Any, tree: Any) -> None:
    sheet = small_vm()
    seen = tree(sheet.page())
    for outcome in sheet.record.outcomes:
        for metric in outcome.metrics:
            assert f"{outcome.probe}/{outcome.case}#{metric.name}" in seen.text
            for sample in metric.samples:
                assert f"{sample.start_s:.3f}" in seen.text
    number = sum(len(outcome.metrics) for outcome in sheet.record.outcomes)
    assert f"S-{number:04d}" in seen.text


def test_a_proof_that_fails_or_was_not_seen_is_said(small_vm: Any, tree: Any) -> None:
    sheet = small_vm()
    first, *rest = sheet.record.outcomes
    proofs = (
        Proof("placement", None, "move_pages is not permitted"),
        Proof("pinned", False, "moved to CPU 1"),
    )
    broken = attrs.evolve(first, metrics=(attrs.evolve(first.metrics[0], proofs=proofs),))
    record = attrs.evolve(sheet.record, outcomes=(broken, *rest))
    seen = tree(attrs.evolve(sheet, record=record).page()).text
    assert "placement: not seen, move_pages is not permitted" in seen
    assert "pinned: does not hold, moved to CPU 1" in seen
    assert "Pinned failed in 1 of" in seen
    assert "Proof of placement Not seen. Move_pages is not permitted" in seen


def test_a_passing_gate_and_one_with_waivers_only(bare_metal: Any, tree: Any) -> None:
    sheet = bare_metal()

    def decide(check: Any) -> Any:
        return check if check.waiver else attrs.evolve(check, verdict=Verdict.PASS, decided=Verdict.PASS)

    steps = tuple(
        attrs.evolve(step, verdict=Verdict.PASS, checks=tuple(map(decide, step.checks)))
        for step in sheet.gate.steps
    )
    waived = attrs.evolve(sheet.gate, steps=steps, verdict=Verdict.WAIVED)
    seen = tree(attrs.evolve(sheet, gate=waived).page()).text
    assert "Pass, with one waiver" in seen
    assert "Without that waiver the decision would be fail." in seen
    passing = attrs.evolve(
        waived,
        verdict=Verdict.PASS,
        waivers=0,
        steps=tuple(
            attrs.evolve(
                s,
                checks=tuple(
                    attrs.evolve(c, verdict=Verdict.PASS, decided=Verdict.PASS, waiver=None) for c in s.checks
                ),
            )
            for s in steps
        ),
    )
    seen = tree(attrs.evolve(sheet, gate=passing).page()).text
    assert "Pass All 43 checks that apply to this target are met" in seen
    assert "Freeze the order" in seen


def test_other_judgements_and_evidence_from_elsewhere_are_listed(bare_metal: Any, tree: Any) -> None:
    sheet = bare_metal()
    earlier = attrs.evolve(sheet.gate, evaluated="2026-12-01T08:00:00+00:00", criteria="stricter")
    seen = tree(sheet.page(earlier=(earlier,))).text
    assert "Other judgements of this run" in seen
    assert "2026-12-01T08:00:00+00:00 unproven stricter" in seen


def test_the_page_stays_small(bare_metal: Any, small_vm: Any) -> None:
    for build in (bare_metal, small_vm):
        assert len(build().page().encode()) < 300_000


@pytest.mark.case("STO-08")
def test_sto_08_rates_are_decimal_and_sizes_carry_their_unit(small_vm: Any, tree: Any) -> None:
    """STO-08: 64 GiB in one second is 68.7 GB/s; installed GiB and usable memory are told apart."""
    sheet = small_vm()
    outcome = sheet.record.outcomes[1]
    value = float(64 * 2**30)
    metric = attrs.evolve(outcome.metrics[0], median=value, interval=(value, value))
    record = attrs.evolve(sheet.record, outcomes=(attrs.evolve(outcome, metrics=(metric,)),))
    seen = tree(attrs.evolve(sheet, record=record).page()).text
    assert "68.7 GB/s" in seen
    assert "Memory the kernel uses 25.0 GiB (26.8 GB)" in seen
    assert "This process may use 23.0 GiB (24.7 GB)" in seen


@pytest.mark.case("STO-11")
def test_sto_11_bytes_that_are_no_text_are_visible_escapes(small_vm: Any, tree: Any) -> None:
    """STO-11: control characters and odd bytes are shown, umlauts and emoji stay."""
    sheet = small_vm()
    machine = attrs.evolve(
        sheet.record.inventory.machine,
        board="\\xff\\xff",
        product="DIMM\x00 \x1b[31m \u202eevil",
        name="Müller 🖥",
    )
    record = attrs.evolve(sheet.record, inventory=attrs.evolve(sheet.record.inventory, machine=machine))
    text = attrs.evolve(sheet, record=record).page()
    assert "\x00" not in text
    assert "\x1b" not in text
    assert "\u202e" not in text
    seen = tree(text).text
    assert "Board \\xff\\xff" in seen
    assert "DIMM\\x00 \\x1b[31m \\u202eevil" in seen
    assert "Müller 🖥" in seen


def test_a_cpu_only_node_and_no_numa_information_are_said(small_vm: Any, tree: Any) -> None:
    sheet = small_vm()
    numa = attrs.evolve(sheet.record.inventory.numa, available=False, nodes=(NumaNode(0, (0, 1), None),))
    record = attrs.evolve(sheet.record, inventory=attrs.evolve(sheet.record.inventory, numa=numa))
    seen = tree(attrs.evolve(sheet, record=record).page()).text
    assert "the kernel shows no NUMA information; one node stands for the machine" in seen


def with_reads(sheet: Any, *cases: tuple[str, str, dict[str, Any], float]) -> Any:
    """The sheet with more readings: (case, metric, labels, rate), after the whole machine's."""
    read = next(
        m
        for o in sheet.record.outcomes
        for m in o.metrics
        if m.name == "memory.bandwidth.read" and m.labels.get("scope") == "node"
    )
    more = []
    for case, name, labels, rate in cases:
        scale = rate / read.median
        samples = tuple(attrs.evolve(one, value=one.value * scale) for one in read.samples)
        interval = (rate * 0.99, rate * 1.01)
        metric = attrs.evolve(
            read, name=name, labels={**read.labels, **labels}, samples=samples, median=rate, interval=interval
        )
        more.append(Outcome("memory", case, State.OK, None, 1.0, 3, (), (metric,), title=case))
    record = attrs.evolve(sheet.record, outcomes=(*sheet.record.outcomes, *more))
    return attrs.evolve(sheet, record=record)


@pytest.mark.case("BW-09")
def test_bw_09_the_sweep_names_the_best_number_of_threads(bare_metal: Any, tree: Any) -> None:
    sweep = {"scope": "sweep", "cpu_node": 0, "memory_node": 0, "placement": "local"}
    sheet = with_reads(
        bare_metal(),
        ("sweep.node0.t8", "memory.bandwidth.read", {**sweep, "threads": 8}, 120e9),
        ("sweep.node0.t24", "memory.bandwidth.read", {**sweep, "threads": 24}, 990e9),
    )
    text = sheet.page()
    seen = tree(text).text
    assert "Node 0 reads fastest with 24 threads" in seen
    figure = text[text.index('id="fig-sweep"') :]
    figure = figure[: figure.index("</figure>")]
    assert figure.count('class="f-data"') == 1, "one bar is the best"
    assert "Node 0, eight threads" in tree(figure).text
    matrix = text[text.index('id="fig-numa"') : text.index('id="fig-rates"')]
    assert "990" not in matrix, "a point of the sweep is no cell of the matrix"


def test_nodes_stand_in_the_order_of_their_numbers(bare_metal: Any, tree: Any) -> None:
    """Node 10 comes after node 2, whatever letters say."""

    def of(node: int, kernel: str, **more: Any) -> dict[str, Any]:
        return {"cpu_node": node, "memory_node": node, "placement": "local", "kernel": kernel, **more}

    rows = []
    for node in (10, 2):
        loaded = of(node, "chase", scope="loaded", delay=0)
        rows += [
            (
                f"sweep.node{node}.t8",
                "memory.bandwidth.read",
                of(node, "read", scope="sweep", threads=8),
                1e11,
            ),
            (f"copy.node{node}", "memory.bandwidth.copy", of(node, "copy"), 4e10),
            (
                f"staircase.node{node}",
                "memory.latency.idle",
                of(node, "chase", scope="staircase", pool_bytes=2**30),
                1e-7,
            ),
            (f"loaded.node{node}", "memory.latency.loaded", loaded, 4e-7),
            (f"loaded.node{node}", "memory.bandwidth.under_load", loaded, 2e11),
        ]
    page = with_latencies(bare_metal(), *rows).page()
    for anchor in ("sweep", "stores", "staircase", "loaded"):
        seen = tree(figure_of(page, f"fig-{anchor}")).text
        table = seen[seen.index("State") :]
        assert table.index("Node 2,") < table.index("Node 10,"), anchor
    assert "GB/s on the bus, modelled" in tree(figure_of(page, "fig-stores")).text


def test_experts_stand_beside_reading_straight_on(bare_metal: Any, tree: Any) -> None:
    machine = {"scope": "machine", "cpu_node": None, "memory_node": None}
    sheet = bare_metal()
    straight = next(
        m
        for o in sheet.record.outcomes
        for m in o.metrics
        if m.name == "memory.bandwidth.read" and m.labels.get("scope") == "machine"
    )
    labels = {**machine, "threads": straight.labels["threads"]}
    sheet = with_reads(
        sheet, ("experts.machine", "memory.bandwidth.expert_read", labels, straight.median * 0.9)
    )
    seen = tree(sheet.page()).text.replace("\u00a0", " ")
    assert "Experts in random order keep 90 % of the bandwidth" in seen
    ladder = seen[seen.index("From paper to token") :]
    assert "Expert-sized reads" in ladder


def figure_of(page: str, anchor: str) -> str:
    """The figure with this anchor."""
    rest = page[page.index(f'id="{anchor}"') :]
    return rest[: rest.index("</figure>")]


def test_kernels_that_store_stand_beside_reading_with_what_the_bus_carries(
    bare_metal: Any, tree: Any
) -> None:
    cached = {"stores": "cached", "counted_bytes_per_word": 16, "bus_bytes_per_word": 24, "kernel": "copy"}
    streamed = {**cached, "stores": "non_temporal", "bus_bytes_per_word": 16, "kernel": "copy_nt"}
    node = {"cpu_node": 0, "memory_node": 0}
    sheet = with_reads(
        bare_metal(),
        ("copy_nt.node0", "memory.bandwidth.copy", {**node, **streamed}, 50e9),
        ("copy.node0", "memory.bandwidth.copy", {**node, **cached}, 40e9),
    )
    paper = sheet.record.inventory.memory.theoretical_bytes_per_s / len(sheet.record.inventory.numa.nodes)
    page = sheet.page()
    seen = tree(figure_of(page, "fig-stores")).text.replace("\u00a0", " ")
    assert "A copy with ordinary stores keeps 80 % of the rate of one past the caches" in seen
    rows = [
        seen.index(word) for word in ("Node 0, read", "copy, ordinary stores", "copy, stores past the caches")
    ]
    assert rows == sorted(rows)
    ordinary = seen[rows[1] : rows[2]]
    assert "40.0" in ordinary and "60.0" in ordinary
    assert f"{paper / 1e9:.0f} {60e9 / paper * 100:.1f} %" in ordinary, "of what the bus carries"
    assert "60.0" not in seen[rows[2] :], "past the caches the bus carries what is counted"
    matrix = page[page.index('id="fig-numa"') : page.index('id="fig-rates"')]
    assert "40.0" not in matrix, "a copy is no cell of the matrix of reads"


def test_theory_measured_and_fraction_stand_side_by_side(bare_metal: Any, tree: Any) -> None:
    labels = {"scope": "core", "cpu_node": 0, "memory_node": 0, "placement": "local", "threads": 1}
    sheet = with_reads(bare_metal(), ("read.core.node0", "memory.bandwidth.read", labels, 12e9))
    whole = sheet.record.inventory.memory.theoretical_bytes_per_s / 1e9
    rates = {
        str(m.labels["scope"]): m.median / 1e9
        for o in sheet.record.outcomes
        for m in o.metrics
        if m.name == "memory.bandwidth.read" and m.labels.get("scope") in ("core", "machine")
    }
    seen = tree(figure_of(sheet.page(), "fig-rates")).text.replace("\u00a0", " ")
    assert "On paper Of paper State" in seen
    core, machine = (
        seen[seen.index("One core of node 0") :],
        seen[seen.index("The whole machine, each node") :],
    )
    part = whole / len(sheet.record.inventory.numa.nodes)
    assert f" {part:.0f} {rates['core'] / part * 100:.2f} % ok" in core
    assert f" {units.significant(whole)} {rates['machine'] / whole * 100:.1f} % ok" in machine


def test_a_paper_rate_in_doubt_gives_no_fraction(bare_metal: Any, tree: Any) -> None:
    sheet = bare_metal()
    unknown = attrs.evolve(
        sheet.record.inventory,
        memory=attrs.evolve(sheet.record.inventory.memory, theoretical_bytes_per_s=None),
    )
    page = attrs.evolve(sheet, record=attrs.evolve(sheet.record, inventory=unknown)).page()
    assert "unknown unknown ok" in tree(figure_of(page, "fig-rates")).text

    def doubted(metric: Any) -> Any:
        return attrs.evolve(metric, proofs=(Proof("ceiling", None, "DIMMs of another speed"),))

    outcomes = tuple(
        attrs.evolve(outcome, metrics=tuple(map(doubted, outcome.metrics)))
        for outcome in sheet.record.outcomes
    )
    page = attrs.evolve(sheet, record=attrs.evolve(sheet.record, outcomes=outcomes)).page()
    assert "not known ok" in tree(figure_of(page, "fig-rates")).text


def test_what_may_lower_a_bandwidth_stands_beside_it(bare_metal: Any, tree: Any) -> None:
    sheet = bare_metal()
    inventory = attrs.evolve(
        sheet.record.inventory,
        cpu=attrs.evolve(sheet.record.inventory.cpu, governor="powersave", boost=None),
        kernel=attrs.evolve(sheet.record.inventory.kernel, numa_balancing=True),
    )
    share = Metric(
        "machine.cpu.other_share", "1", Better.LOWER, {"scope": "machine"}, (), 0.043, None, State.OK
    )
    idle = Outcome("machine", "idle", State.OK, None, 0.0, 1, (), (share,))
    outcomes = (*(o for o in sheet.record.outcomes if o.probe != "machine"), idle)
    record = attrs.evolve(sheet.record, inventory=inventory, outcomes=outcomes)
    page = attrs.evolve(sheet, record=record).page()
    for anchor in ("fig-numa", "fig-rates"):
        seen = tree(figure_of(page, anchor)).text.replace("\u00a0", " ")
        assert "Frequency governor: powersave (clocks ramp up late" in seen
        assert "Automatic NUMA balancing: on (" in seen
        assert "Not known: Boost" in seen
        assert "Other processes took 4.3 % of the CPU time" in seen
        assert "A hypervisor took an unknown share of the CPU time" in seen
    assert "Frequency governor" not in tree(figure_of(page, "fig-residency")).text


def test_the_sum_of_a_socket_stands_between_node_and_machine(bare_metal: Any, tree: Any) -> None:
    labels = {"scope": "socket", "socket": 1, "cpu_node": None, "memory_node": None, "placement": "spread"}
    sheet = with_reads(bare_metal(), ("read.socket1", "memory.bandwidth.read", labels, 333e9))
    seen = tree(figure_of(sheet.page(), "fig-rates")).text.replace("\u00a0", " ")
    assert "a socket 333 GB/s" in seen
    assert (
        seen.index("Node 3 reads its own")
        < seen.index("Socket 1, each node its own memory")
        < seen.index("The whole machine, each node")
    )


def test_experts_all_over_the_image_stand_beside_the_machine_reading_straight_on(
    bare_metal: Any, tree: Any
) -> None:
    sheet = bare_metal()
    straight = next(m for o in sheet.record.outcomes for m in o.metrics if m.labels.get("scope") == "machine")
    labels = {**straight.labels, "scope": "image", "pool_bytes": 10**12}
    sheet = with_reads(
        sheet, ("experts.image", "memory.bandwidth.expert_read", labels, straight.median * 0.7)
    )
    seen = tree(figure_of(sheet.page(), "fig-experts")).text.replace("\u00a0", " ")
    assert "Experts in random order keep 70 % of the bandwidth" in seen
    assert "all over 1,000.0 GB of the image" in seen


@pytest.mark.case("BW-02")
def test_bw_02_a_machine_that_is_slower_than_one_node_is_said(bare_metal: Any, tree: Any) -> None:
    """Two nodes: 4 GB/s with all of them, 8 with one; spread, interleaved and single all stand in the figure."""
    machine = {"cpu_node": None, "memory_node": None, "placement": "spread"}
    sheet = bare_metal(2)
    before = len(sheet.record.outcomes)
    sheet = with_reads(
        sheet,
        ("read.node1.node1", "memory.bandwidth.read", {"cpu_node": 1, "memory_node": 1}, 8e9),
        ("read.machine", "memory.bandwidth.read", {**machine, "scope": "machine"}, 4e9),
        ("read.interleaved", "memory.bandwidth.read", {**machine, "scope": "interleaved"}, 3e9),
    )
    record = attrs.evolve(sheet.record, outcomes=sheet.record.outcomes[before:])
    page = attrs.evolve(sheet, record=record).page()
    seen = tree(figure_of(page, "fig-rates")).text.replace("\u00a0", " ")
    assert "The whole machine reads 4.00 GB/s, less than one node alone, which reads 8.00 GB/s" in seen
    assert "Node 1 reads its own memory" in seen
    assert "every thread all nodes' memory" in seen


def with_latencies(sheet: Any, *rows: tuple[str, str, dict[str, Any], float]) -> Any:
    from k3gate import metrics

    grown = with_reads(sheet, *rows)
    outcomes = []
    for outcome in grown.record.outcomes:
        fixed = []
        for metric in outcome.metrics:
            declared = metrics.find(metric.name)
            assert declared is not None
            fixed.append(attrs.evolve(metric, unit=declared.unit, better=declared.better))
        outcomes.append(attrs.evolve(outcome, metrics=tuple(fixed)))
    return attrs.evolve(grown, record=attrs.evolve(grown.record, outcomes=tuple(outcomes)))


def test_latencies_have_a_heat_map_a_staircase_and_a_curve_under_load(bare_metal: Any, tree: Any) -> None:
    idle, chased = "memory.latency.idle", "memory.latency.loaded"
    cell = {"scope": "node", "placement": "local", "kernel": "chase", "counting": "dependent loads"}
    stair = {**cell, "scope": "staircase", "cpu_node": 0, "memory_node": 0}
    load = {**stair, "scope": "loaded", "load_threads": 31}
    sheet = with_latencies(
        bare_metal(),
        ("latency.node0.node0", idle, {**cell, "cpu_node": 0, "memory_node": 0}, 112e-9),
        (
            "latency.node0.node1",
            idle,
            {**cell, "cpu_node": 0, "memory_node": 1, "placement": "remote"},
            234e-9,
        ),
        ("staircase.node0", idle, {**stair, "pool_bytes": 16384}, 1.3e-9),
        ("staircase.node0", idle, {**stair, "pool_bytes": 2**30}, 114e-9),
        ("loaded.node0", chased, {**load, "delay": 0}, 480e-9),
        ("loaded.node0", "memory.bandwidth.under_load", {**load, "delay": 0}, 210e9),
        ("loaded.node0", chased, {**load, "delay": 2048}, 120e-9),
        ("loaded.node0", "memory.bandwidth.under_load", {**load, "delay": 2048}, 20e9),
    )
    text = sheet.page()
    seen = tree(text).text.replace("\u00a0", " ")
    assert "Local memory answers in 112 ns, other nodes' in up to 234 ns" in seen
    assert 'class="lt loc"' in text, "latency has a colour of its own"
    assert "From 1.30 ns in the first cache to 114 ns in memory" in seen
    assert "Under load memory answers in up to 480 ns" in seen
    curve = text[text.index('id="fig-loaded"') :]
    curve = tree(curve[: curve.index("</figure>")]).text.replace("\u00a0", " ")
    assert curve.index("At 20.0 GB/s") < curve.index("At 210 GB/s"), "by bandwidth, not by delay"
    assert "2048" not in curve
    assert "roofline.latency" in {check.id for step in sheet.gate.steps for check in step.checks}
    assert "latency of every node (" not in seen, "a heat map whose check is unproven is drawn all the same"


def test_what_was_seen_is_not_told_as_never_measured(bare_metal: Any, tree: Any) -> None:
    """An unproven check may rest on a figure: only without one was nothing measured."""
    sheet = bare_metal()
    seen = tree(sheet.page()).text
    assert "Not drawn" in seen and "PCIe rates (" in seen

    def noisy(check: Any) -> Any:
        return attrs.evolve(check, observed=0.7) if check.id == "roofline.pcie_rate" else check

    steps = tuple(attrs.evolve(step, checks=tuple(map(noisy, step.checks))) for step in sheet.gate.steps)
    seen = tree(attrs.evolve(sheet, gate=attrs.evolve(sheet.gate, steps=steps)).page()).text
    assert "Not drawn" in seen and "PCIe rates (" not in seen


def test_no_title_states_an_unstable_figure_without_a_word_of_doubt(bare_metal: Any, tree: Any) -> None:
    """Every figure that has a number in its title, from one measurement of each kind."""
    node = {"cpu_node": 0, "memory_node": 0, "placement": "local"}
    idle = {**node, "kernel": "chase"}
    load = {**node, "scope": "loaded", "delay": 0}
    file = {"scope": "file", "cpu_node": None, "memory_node": None, "file": "/f", "file_system": "ext4"}
    machine = {"scope": "machine", "cpu_node": None, "memory_node": None, "threads": 128}
    sheet = with_latencies(
        bare_metal(),
        ("read.4k.node0", "memory.bandwidth.read", {**node, "scope": "node", "page_size": 4096}, 50e9),
        ("sweep.node0.t8", "memory.bandwidth.read", {**node, "scope": "sweep", "threads": 8}, 990e9),
        ("experts.machine", "memory.bandwidth.expert_read", machine, 300e9),
        ("copy.node0", "memory.bandwidth.copy", {**node, "kernel": "copy"}, 40e9),
        ("copy_nt.node0", "memory.bandwidth.copy", {**node, "kernel": "copy_nt"}, 50e9),
        ("latency.node0.node0", "memory.latency.idle", {**idle, "scope": "node"}, 112e-9),
        ("staircase.node0", "memory.latency.idle", {**idle, "scope": "staircase", "pool_bytes": 2**30}, 1e-7),
        ("loaded.node0", "memory.latency.loaded", load, 480e-9),
        ("loaded.node0", "memory.bandwidth.under_load", load, 210e9),
        ("file1.read", "memory.file.read", file, 9e9),
    )

    def as_if(state: State) -> str:
        outcomes = tuple(
            attrs.evolve(outcome, metrics=tuple(attrs.evolve(m, state=state) for m in outcome.metrics))
            for outcome in sheet.record.outcomes
        )
        return attrs.evolve(sheet, record=attrs.evolve(sheet.record, outcomes=outcomes)).page()

    steady, unstable = as_if(State.OK), as_if(State.UNSTABLE)
    anchors = (
        "numa",
        "latency",
        "rates",
        "pages",
        "sweep",
        "experts",
        "stores",
        "staircase",
        "loaded",
        "files",
    )
    for anchor in anchors:
        title = re.search(r"<b>(.*?)</b>", figure_of(unstable, f"fig-{anchor}"))
        assert title is not None and title[1].endswith("(unstable)"), anchor
        title = re.search(r"<b>(.*?)</b>", figure_of(steady, f"fig-{anchor}"))
        assert title is not None and "unstable" not in title[1], anchor


def test_files_read_as_memory_have_a_figure_of_their_own(bare_metal: Any, tree: Any) -> None:
    label = {"scope": "file", "cpu_node": None, "memory_node": None, "placement": None}
    label |= {"file": "/models/<k3>.gguf", "file_system": "ext4", "read_from": "page cache", "made": False}
    node = {**label, "cpu_node": 1, "threads": 1}
    made = {**label, "file": "/mnt/pmem", "read_from": "DAX", "made": True}
    plain = bare_metal().page()
    assert "fig-files" not in plain and "Files read as memory" not in plain, "nobody named one"
    sheet = with_latencies(
        bare_metal(),
        ("file1.read", "memory.file.read", label, 31e9),
        ("file1.latency.node1", "memory.file.latency", node, 340e-9),
        ("file2.experts", "memory.file.expert_read", made, 12e9),
    )
    text = sheet.page()
    figure = text[text.index('id="fig-files"') :]
    seen = tree(figure[: figure.index("</figure>")]).text.replace("\u00a0", " ")
    assert "A mapped file is read at up to 31.0 GB/s" in seen
    assert "All cores, straight on: /models/<k3>.gguf (page cache, ext4)" in seen
    assert "All cores, experts in random order: made in /mnt/pmem (DAX, ext4)" in seen
    assert "Node 1, latency: /models/<k3>.gguf" in seen and "340 ns" in seen
    matrix = text[text.index('id="fig-numa"') : text.index('id="fig-rates"')]
    assert "31.0" not in matrix, "a file is no node's memory"

"""The short list of rules for what is no bound. Each takes the record and gives a judgement."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from k3gate import topology, units
from k3gate.gate import conversions, hardware
from k3gate.gate.criteria import Criterion
from k3gate.gate.judgement import Judgement, by_evidence, unproven, worst
from k3gate.gate.targets import Target
from k3gate.metrics import RESIDENCY_BYTES
from k3gate.model.checkpoint.architecture import KIMI_K3
from k3gate.model.residency import Image
from k3gate.probing.outcomes import evidence as believed
from k3gate.records import Evidence, Metric, Proof, RunRecord, State, Verdict

_BANDWIDTH = "memory.bandwidth."
_RESIDENCY_PROOFS = {
    "checksum": "what it holds",
    "resident": "that it stayed in memory",
    "placement": "on which nodes it lay",
}
_ALLOW_PLACEMENT = (
    "Allow the calls mbind and move_pages to the process (in a container: CAP_SYS_NICE), then run again."
)


def bare_metal(record: RunRecord) -> Judgement:
    """Virtual fails; a container, a restriction, CPUs left out or what could not be seen leave it unproven."""
    inventory = record.inventory
    evidence: tuple[str, ...] = ("inventory:machine.virtual", "inventory:machine.container")
    guest = hardware.virtual(inventory)
    if guest is not None:
        return Judgement(Verdict.FAIL, f"{units.capital(guest)}.", observed="virtual", evidence=evidence)
    unseen = hardware.unknown(inventory)
    if unseen is not None:
        return unproven(f"{units.capital(unseen.reason)}.", evidence, remedy=unseen.remedy)
    limited = hardware.restricted(inventory) or hardware.incomplete(inventory)
    if limited is not None:
        return unproven(
            f"{units.capital(limited.reason)}.",
            (*evidence, "inventory:cpu.allowed", "inventory:limits.restricted"),
            remedy=limited.remedy,
            observed="restricted",
        )
    if inventory.machine.container is not None:
        return unproven(
            f"The run was in a container ({inventory.machine.container}), which hides part of the machine.",
            evidence,
            remedy="Run it again outside the container.",
            observed="container",
        )
    return Judgement(
        Verdict.PASS,
        f"No hypervisor, no container, {hardware.every_cpu(inventory)}.",
        observed="bare metal",
        evidence=evidence,
    )


def placement(record: RunRecord) -> Judgement:
    """Every bandwidth figure carries a proof that its pages lay where it says. Each case counts once.

    A figure that failed for another reason is none, and nobody's evidence.
    """
    cases: dict[str, list[Metric]] = {}
    for outcome in record.outcomes:
        for metric in believed(outcome):
            if metric.name.startswith(_BANDWIDTH) and metric.median is not None:
                cases.setdefault(f"{outcome.probe}/{outcome.case}#{metric.name}", []).append(metric)
    bad, open_, good = [], [], []
    for row, figures in cases.items():
        proofs = [[p for p in figure.proofs if p.name == "placement"] for figure in figures]
        told = [proof for own in proofs for proof in own]
        misplaced = next((proof for proof in told if proof.ok is False), None)
        if misplaced is not None:
            bad.append((row, misplaced.detail))
        elif any(figure.state is State.FAILED for figure in figures):
            continue
        elif not all(proofs) or any(proof.ok is None for proof in told):
            open_.append((row, next((p.detail for p in told if p.ok is None), "no proof was kept")))
        else:
            good.append((row, ""))
    total = len(bad) + len(open_) + len(good)
    observed = f"{len(good)} of {total} proven"
    if bad:
        reason = (
            f"{len(bad)} of {total} bandwidth figures come from other memory than they name ({bad[0][1]})."
        )
        return Judgement(Verdict.FAIL, reason, observed=observed, evidence=tuple(row for row, _ in bad))
    if open_:
        return unproven(
            f"The placement of {len(open_)} of {total} bandwidth figures is unknown ({open_[0][1]}).",
            tuple(row for row, _ in open_),
            observed=observed,
            remedy=_ALLOW_PLACEMENT,
        )
    if not good:
        return unproven("No bandwidth was measured in this run, so there is nothing to prove.")
    rows = tuple(row for row, _ in good)
    lost = hardware.topology(record.inventory)
    if lost is not None:
        return unproven(f"{units.capital(lost)}.", rows, observed=observed)
    guest = hardware.virtual(record.inventory)
    if guest is not None:
        return unproven(
            f"All {total} bandwidth figures lay on the nodes that they name, as far as this guest sees: "
            f"{guest}, and where the host put that memory is hidden from it.",
            rows,
            observed=observed,
            remedy="Measure on the bare machine.",
        )
    return Judgement(
        Verdict.PASS,
        f"All {total} bandwidth figures were read from the memory they name.",
        observed,
        evidence=rows,
    )


def residency(record: RunRecord, target: Target) -> Judgement:
    """CPU memory holds the target's image: lacking fails, held and verified passes, less held is unproven."""
    inventory = record.inventory
    image = target.image(len(topology.main_nodes(inventory)))
    swap = inventory.memory.swap_used_bytes
    note = f" Swap is in use: {units.exact_bytes(swap)}." if swap else ""
    short = _too_small(record, image)
    if short is not None:
        hint = ""
        if image.copies > 1:
            one = image.bytes - sum(
                image.parts[p] * (image.copies - 1) // image.copies for p in _weights(image.parts)
            )
            hint = f" One copy of the weights over all nodes needs {units.exact_bytes(one)}."
        return Judgement(
            Verdict.FAIL,
            f"{short.reason}{hint}{note}",
            short.observed,
            unit="B",
            evidence=short.evidence,
            remedy=short.remedy,
        )
    need = image.bytes
    rows = [
        (f"{outcome.probe}/{outcome.case}#{metric.name}", metric)
        for outcome in record.outcomes
        for metric in believed(outcome)
        if metric.name == RESIDENCY_BYTES.name
    ]
    held = [(row, metric) for row, metric in rows if _held(metric) is not None]
    lost = _lost(rows, need)
    if lost is not None:
        row, cause, observed = lost
        reason = f"The image could not be held: {cause}. Needed: {image.arithmetic()}.{note}"
        return Judgement(Verdict.FAIL, reason, observed=observed, evidence=(row,))
    limit = inventory.limits.cgroup_memory_bytes
    if limit is not None and limit < need:
        return unproven(
            f"The control group allows {units.exact_bytes(limit)}, {units.exact_bytes(need - limit)} less "
            f"than the target needs: {image.arithmetic()}.{note}",
            ("inventory:limits.cgroup_memory_bytes",),
            remedy="Run it again outside the container or control group, or raise its memory limit.",
            observed=float(limit),
            unit="B",
        )
    if not held:
        why = next((f"{m.state}, {m.reason or 'no reason given'}" for _, m in rows), None) or next(
            (o.reason for o in record.outcomes if o.case.startswith("residency") and o.reason), None
        )
        why = why or next((lo.reason for lo in record.run.left_out if lo.case.startswith("residency")), None)
        told = f" ({why})" if why else ""
        return unproven(f"No memory image was held in this run{told}. Needed: {image.arithmetic()}.{note}")
    row, metric = max(held, key=lambda each: _held(each[1]) or 0.0)
    size = _held(metric)
    assert size is not None
    observed = f"{units.exact_bytes(int(size))} held and verified"
    pool = metric.labels.get("memory") == "pool"
    flaw = next((proof for proof in metric.proofs if proof.ok is False), None)
    open_ = _unseen(metric)
    if flaw is not None:
        reason = f"{observed}, but its proof of {flaw.name} failed ({flaw.detail})."
    elif size < need:
        reason = (
            f"{observed}, {units.exact_bytes(int(need - size))} less than needed: {image.arithmetic()}.{note}"
        )
    elif open_ is not None:
        reason = f"{observed}, but {_RESIDENCY_PROOFS[open_.name]} is not proven ({open_.detail})."
    elif (guest := hardware.virtual(inventory)) is not None:
        reason = f"{observed}, in a guest: {guest}, and the host may have promised the same memory to others."
    else:
        return Judgement(
            Verdict.PASS, f"{observed}; needed: {image.arithmetic()}.{note}", size, unit="B", evidence=(row,)
        )
    remedy = None
    if size < need and not pool:
        remedy = "Free memory so that the whole image can be taken, or add memory, and run again."
    elif flaw is None and size >= need and open_ is not None and open_.name == "placement":
        remedy = _ALLOW_PLACEMENT
    return unproven(reason, (row,), observed=size, unit="B", remedy=remedy)


def _lost(rows: Sequence[tuple[str, Metric]], need: int) -> tuple[str, str, str] | None:
    """The row that shows memory refused or data lost, the cause, and what was observed; or None.

    Only what speaks of the machine: memory that was refused while the image would fit, or a pattern that did
    not read back. A thread that strayed, or pages on another node, spoil the proof and not the machine.
    """
    for row, metric in rows:
        proofs = {proof.name: proof for proof in metric.proofs if proof.ok is False}
        wrong, refused = proofs.get("checksum"), proofs.get("allocation")
        if wrong is not None:
            return row, f"memory did not give back what was written ({wrong.detail})", "data lost"
        image = metric.labels.get("memory") == "image" and _wanted(metric, need) <= need
        if refused is not None and image:
            return row, metric.reason or refused.detail, "allocation failed"
    return None


def _too_small(record: RunRecord, image: Image) -> Judgement | None:
    """The machine's memory is below the image, or a node's below the copy that it is to hold."""
    total, need, arithmetic = record.inventory.memory.total_bytes, image.bytes, image.arithmetic()
    if image.copies > 1:
        copy = sum(image.parts[part] for part in _weights(image.parts)) // image.copies
        nodes = [node for node in topology.main_nodes(record.inventory) if node.memory_bytes is not None]
        low = next((node for node in nodes if (node.memory_bytes or 0) < copy), None)
        if low is not None:
            return Judgement(
                Verdict.FAIL,
                f"The target wants a copy of the weights on every node, {units.exact_bytes(copy)} each; node "
                f"{low.id} has {units.exact_bytes(low.memory_bytes or 0)}. In all: {arithmetic}.",
                float(low.memory_bytes or 0),
                evidence=("inventory:numa.nodes",),
            )
    if total is None or total >= need:
        return None
    return Judgement(
        Verdict.FAIL,
        f"The target needs {arithmetic}; the machine has {units.exact_bytes(total)} of usable memory: "
        f"{units.exact_bytes(need - total)} short.",
        float(total),
        evidence=("inventory:memory.total_bytes",),
    )


def _unseen(metric: Metric) -> Proof | None:
    """The first proof that a pass needs and that could not be taken, or is not there."""
    for name in _RESIDENCY_PROOFS:
        absent = Proof(name, None, "no proof was kept")
        found = next((proof for proof in metric.proofs if proof.name == name), absent)
        if found.ok is None:
            return found
    return None


def _weights(parts: Mapping[str, int]) -> tuple[str, ...]:
    return tuple(part for part in ("experts", "trunk", "vision") if part in parts)


def _held(metric: Metric) -> float | None:
    """Bytes that were held in every round, or None where the metric is not sound."""
    if metric.state is not State.OK or metric.unit != RESIDENCY_BYTES.unit or metric.median is None:
        return None
    return min(metric.median, metric.interval[0]) if metric.interval else None


def _wanted(metric: Metric, unknown: float) -> float:
    wanted = metric.labels.get("wanted_bytes")
    return float(wanted) if isinstance(wanted, int | float) else unknown


def evidence(criterion: Criterion, record: RunRecord, target: Target) -> Judgement:
    """Evidence about the target's subject, the newest one, decides; about anything else it says nothing."""
    newest = _newest(criterion, record, target)
    return newest if isinstance(newest, Judgement) else by_evidence(newest)


def conversion(criterion: Criterion, record: RunRecord, target: Target) -> Judgement:
    """The newest comparison of the target's converted file with the target's checkpoint, and with no other."""
    newest = _newest(criterion, record, target)
    if isinstance(newest, Judgement):
        return newest
    rows = (f"evidence:{newest.subject}",)
    model = newest.data.get("architecture")
    if model != KIMI_K3:
        return unproven(
            f"The converted file was compared with another model than Kimi K3: {str(model)[:40]}.", rows
        )
    source = newest.data.get("source")
    own = _subjects("checkpoint", record, target) or {
        each.subject for each in record.evidence if each.subject_kind == "checkpoint"
    }
    if own and source not in own:
        return unproven(
            f"The converted file was compared with another checkpoint than the target's: {str(source)[:40]}.",
            rows,
        )
    return conversions.judge(criterion, newest)


def _newest(criterion: Criterion, record: RunRecord, target: Target) -> Evidence | Judgement:
    """The evidence that counts, or why there is none."""
    about = [
        e
        for e in record.evidence
        if e.check == criterion.id
        and e.subject_kind == criterion.subject
        # An order is one subject for all machines: what it was found to be on another one says nothing of this one.
        and e.data.get("run") in (None, record.run.id)
    ]
    if not about:
        return unproven(f"No evidence about {_subject_words(criterion.subject)}.")
    wanted = _subjects(criterion.subject, record, target)
    subjects = {each.subject for each in about}
    if wanted is None and len(subjects) > 1 and criterion.subject != "bom":
        return unproven(
            f"The evidence is about {len(subjects)} different subjects.",
            remedy="Name the right one under [subjects] in the target.",
        )
    fitting = [each for each in about if wanted is None or each.subject in wanted]
    if not fitting:
        return unproven(
            f"The evidence is about another {criterion.subject} than the target's: {about[0].subject[:40]}."
        )
    return _agreed(fitting)


def _agreed(fitting: Sequence[Evidence]) -> Evidence | Judgement:
    """The newest evidence, unless two places disagree: a digest is of headers, and files of one header can hold other
    bytes."""
    newest: dict[object, Evidence] = {}
    for each in fitting:
        place = each.data.get("place")
        if place not in newest or each.gathered >= newest[place].gathered:
            newest[place] = each
    if len({each.verdict for each in newest.values()}) > 1 and None not in newest:
        return unproven(
            f"Files of one header differ in {len(newest)} places, and which of them is meant is not known.",
            tuple(f"evidence:{each.subject}" for each in list(newest.values())[:1]),
            remedy="Gather the evidence again in each of the places, or remove the wrong files.",
        )
    return max(reversed(fitting), key=lambda each: each.gathered)


def licence(criterion: Criterion, record: RunRecord, target: Target) -> Judgement:
    """The licence text that was found beside the checkpoint is the one that a named person accepted."""
    accepted = target.licence_accepted
    found = evidence(criterion, record, target)
    sha256 = _licence_found(criterion, record, found)
    if accepted is None:
        return unproven(f"Nobody has accepted the licence: the target {target.name!r} names no one.")
    if found.verdict is not Verdict.PASS or sha256 is None:
        return unproven(
            f"{accepted.by} accepted a licence on {accepted.on}, but the file of the checkpoint was not read."
        )
    if sha256 != accepted.sha256:
        return Judgement(
            Verdict.FAIL,
            f"{accepted.by} accepted another text on {accepted.on} than the one found, sha256:{sha256[:64]}.",
            observed=f"sha256:{sha256}",
            evidence=found.evidence,
        )
    return Judgement(
        Verdict.PASS,
        f"{accepted.by} accepted this licence on {accepted.on}.",
        observed=f"sha256:{sha256}",
        evidence=found.evidence,
    )


def _licence_found(criterion: Criterion, record: RunRecord, found: Judgement) -> str | None:
    same: list[Evidence] = [
        e
        for e in record.evidence
        if e.check == criterion.id and e.subject == found.observed and "sha256" in e.data
    ]
    if not same:
        return None
    return str(max(same, key=lambda each: each.gathered).data["sha256"]).removeprefix("sha256:").lower()


def steps(decided: Mapping[int, Verdict]) -> Judgement:
    """Steps 1 to 6 pass or are waived. `decided`: their verdicts, after waivers."""
    counts = {verdict: sum(1 for each in decided.values() if each is verdict) for verdict in Verdict}
    observed = ", ".join(f"{number} {verdict}" for number, verdict in sorted(decided.items()))
    verdict = worst(decided.values())
    if verdict in (Verdict.PASS, Verdict.WAIVED):
        waived = counts[Verdict.WAIVED]
        reason = "Steps 1 to 6 pass" + (f", {waived} of them by waivers." if waived else ".")
        return Judgement(Verdict.PASS, reason, observed)
    named = {
        each: ", ".join(str(n) for n, v in sorted(decided.items()) if v is each)
        for each in (Verdict.FAIL, Verdict.UNPROVEN)
    }
    said = [f"failed: {named[Verdict.FAIL]}"] if named[Verdict.FAIL] else []
    said += [f"unproven: {named[Verdict.UNPROVEN]}"] if named[Verdict.UNPROVEN] else []
    return Judgement(verdict, f"Steps {'; '.join(said)}.", observed)


def _subjects(kind: str | None, record: RunRecord, target: Target) -> set[str] | None:
    """Digests that evidence must be about, or None where the target does not pin one."""
    if kind == "machine":
        return {each for each in (record.run.machine, record.run.fingerprint) if each}
    pinned = target.subjects.get(kind or "")
    return None if pinned is None else {pinned}


def _subject_words(kind: str | None) -> str:
    words = {
        "checkpoint": "the checkpoint",
        "converted": "the converted file",
        "runtime": "the runtime",
        "machine": "this machine",
        "bom": "the order",
    }
    return words.get(kind or "", "the subject")

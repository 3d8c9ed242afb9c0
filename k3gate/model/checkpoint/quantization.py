"""How a checkpoint is quantized: what its tensors show, and where its config says otherwise. Pure.

The tensors decide; a config that contradicts them is a finding, since loaders believe it.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence

import regex

from k3gate.documents import printable
from k3gate.model.checkpoint import config
from k3gate.model.checkpoint.content import Content
from k3gate.records import Finding, Severity
from k3gate.units import count

_LONGEST_PATTERN = 500
_PATTERN_SECONDS = 0.2
_FEW = 6


def findings(
    stated: config.Stated | None,
    content: Content,
    modules: Mapping[str, bool],
    tensors: Container[str],
) -> Iterator[Finding]:
    """What is wrong with codes, scales and the list of what is not quantized.

    `modules`: the modules with a weight, of the experts of a layer the first alone, and whether they hold codes or
    FP8. `tensors`: the names of all.
    """
    quantization = stated.quantization if stated else None
    yield from _scales(content)
    yield from _undeclared(quantization, content, stated)
    yield from _ignored(config.ignored(quantization), modules, tensors)
    told = config.code_group(quantization)
    for pair in content.pairs:
        if told and pair.group and pair.type not in ("F8_E4M3", "F8_E5M2") and pair.group != told:
            yield Finding(
                "scale_group",
                Severity.HIGH,
                "Scales stand for another number of weights than the config says",
                f"{count(pair.number, 'matrix', 'matrices')} of {pair.part}: {pair.group} weights a scale",
                f"{told}, as the config has it",
                "A loader that believes the config multiplies weights by the scales of others.",
                "Convert the checkpoint anew, or mend its config.",
            )


def _scales(content: Content) -> Iterator[Finding]:
    if content.without_scale:
        yield Finding(
            "scale_missing",
            Severity.HIGH,
            f"{count(len(content.without_scale), 'quantized matrix', 'quantized matrices')} without a scale",
            _few(content.without_scale),
            "a scale for every matrix of codes or FP8",
            "Codes without a scale are of unknown size: a loader that takes 1 for it computes nonsense.",
            "Fetch the files that hold the scales, or convert the checkpoint anew.",
        )
    if content.unlike_scale:
        yield Finding(
            "scale_shape",
            Severity.HIGH,
            "Scales that do not fit their matrices",
            _few(content.unlike_scale),
            "a whole number of weights for each scale",
            "A loader reads weights with the scales of others, or not at all.",
            "Convert the checkpoint anew.",
        )
    if content.lonely_scales:
        yield Finding(
            "scale_alone",
            Severity.MEDIUM,
            f"{count(content.lonely_scales, 'scale')} without a matrix",
            "scales whose codes are in no file",
            "a matrix for every scale",
            "Either codes are missing or scales are left over from a conversion.",
            "Compare the index with the files that are there.",
        )


def _undeclared(
    quantization: Mapping[str, object] | None, content: Content, stated: config.Stated | None
) -> Iterator[Finding]:
    packed = content.pairs
    if packed and not quantization and stated is not None and stated.source == "config.json":
        yield Finding(
            "quantization_undeclared",
            Severity.HIGH,
            "Quantized tensors, and the config does not say how",
            f"{count(sum(pair.number for pair in packed), 'matrix', 'matrices')} of type {packed[0].type}",
            "a quantization_config",
            "A loader takes the codes for weights.",
            "Restore the config that belongs to these files.",
        )


def _ignored(
    patterns: Sequence[str], modules: Mapping[str, bool], tensors: Container[str]
) -> Iterator[Finding]:
    """Entries that name what is quantized all the same, and entries that name nothing."""
    contradicted: list[str] = []
    dead: list[str] = []
    unread: list[str] = []
    for pattern in patterns:
        try:
            hit = [quantized for module, quantized in modules.items() if matches(pattern, module)]
        except (ValueError, TimeoutError):
            unread.append(pattern)
            continue
        if not hit and not pattern.startswith("re:"):
            packed = any(f"{pattern}.{ending}" in tensors for ending in ("weight_packed", "qweight"))
            hit = [packed] if packed or f"{pattern}.weight" in tensors else []
        if not hit:
            dead.append(pattern)
        elif any(hit):
            contradicted.append(pattern)
    if contradicted:
        yield Finding(
            "ignore_contradicted",
            Severity.HIGH,
            "The config calls tensors unquantized that are quantized",
            _few(contradicted),
            "an ignore list that describes the files",
            "A loader that believes the list takes codes for weights.",
            "Mend the list, or convert the checkpoint anew.",
        )
    if dead:
        yield Finding(
            "ignore_unused",
            Severity.LOW,
            f"{count(len(dead), 'entry matches', 'entries match')} no weight, of the ignore list",
            _few(dead),
            "entries that match a module",
            "Harmless where the tensors decide; a loader that goes by names may differ.",
            "Nothing is needed for k3gate; compare the list with the original's.",
        )
    if unread:
        yield Finding(
            "ignore_unread",
            Severity.LOW,
            f"{count(len(unread), 'entry', 'entries')} of the ignore list cannot be evaluated here",
            _few(unread),
            "plain names or simple patterns",
            "A pattern that does not compile or takes long is not followed.",
            "Simplify the pattern.",
        )


def matches(pattern: str, module: str) -> bool:
    """Whether an entry of an ignore list names a module: "re:" begins a pattern, all else is a whole name.

    As compressed-tensors reads them: a pattern matches from the start of the name. `ValueError` where it does
    not compile or is very long, `TimeoutError` where it takes long: it is a stranger's.
    """
    if not pattern.startswith("re:"):
        return pattern == module
    if len(pattern) > _LONGEST_PATTERN:
        raise ValueError("a pattern of great length")
    try:
        return regex.match(pattern[3:], module, timeout=_PATTERN_SECONDS) is not None
    except regex.error as error:
        raise ValueError(str(error)) from error


def _few(names: Sequence[str]) -> str:
    more = f" and {len(names) - _FEW:,} more" if len(names) > _FEW else ""
    return printable(", ".join(name[:120] for name in names[:_FEW])) + more

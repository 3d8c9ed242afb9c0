"""An inspection as the JSON of `k3gate inspect --json`."""

from __future__ import annotations

from collections import Counter
from typing import Any

from k3gate.documents import plain
from k3gate.model.checkpoint.costs import cache_bytes
from k3gate.model.checkpoint.inspection import Inspection


def document(found: Inspection) -> dict[str, Any]:
    """The JSON of `k3gate inspect --json`; bytes per token are those of weights at batch 1."""
    content = found.content
    stated = found.stated
    kinds = Counter(layer.attention or "none" for layer in content.layers)
    return {
        "place": found.place,
        "revision": found.revision,
        "format": found.format,
        "architecture": found.architecture.name,
        "because": found.architecture.because,
        "digest": found.digest,
        "shards": plain(found.shards),
        "tensors": content.tensors,
        "bytes": {
            "tensors": content.bytes,
            "files": found.shards.bytes,
            "groups": {name: group.bytes for name, group in content.groups.items()},
        },
        "groups": plain(content.groups),
        "parameters": {"total": content.parameters, "active": found.active_parameters},
        "bytes_per_token": dict(found.bytes_per_token),
        "kv_bytes_per_token": cache_bytes(content),
        "state_bytes_per_sequence": content.state_bytes,
        "layers": {
            "total": len(content.layers),
            "attention": dict(kinds),
            "with_experts": sum(layer.experts > 0 for layer in content.layers),
        },
        "experts": {
            "per_layer": content.experts,
            "per_token": found.experts_per_token,
            "parameters": content.expert_parameters,
            "bytes": content.expert_bytes,
            "layout": "fused" if content.fused else "single" if content.experts else None,
        },
        "quantization": plain(content.pairs),
        "context": stated.context if stated else None,
        "licences": [{"file": name, "sha256": digest} for name, digest in found.licences],
        "tokenizers": list(found.tokenizers),
        "templates": list(found.templates),
        "notes": list(found.notes),
        "findings": plain(found.findings),
    }

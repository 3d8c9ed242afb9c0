"""What a system's file says of the model: where it lies, how it is stated by hand, and what is said of it. Pure."""

from __future__ import annotations

from k3gate.analysis.system import GB, Override
from k3gate.analysis.system_parts import count, tables_of
from k3gate.model.sizes import ROLES, Group, ModelSizes
from k3gate.tables import Table

OVERRIDES = ("layers", "active_parameters", "total_parameters", "experts", "experts_per_token", "weights_gb")


def model(top: Table) -> tuple[str | None, ModelSizes | None, tuple[Override, ...]]:
    """The path of the model, the model as it is stated by hand, and statements about it."""
    table = top.table("model", ("path", "stated", *OVERRIDES))
    path = table.optional_text("path")
    overrides = tuple(Override(key, value) for key in OVERRIDES if (value := table.positive(key)) is not None)
    if "stated" not in table.data:
        return path, None, overrides
    if path is not None:
        raise table.refuse("stated", "and path are both given; leave one out")
    return None, _stated(table.table("stated")), overrides


def _stated(table: Table) -> ModelSizes:
    """A model by hand: its groups with what they weigh, for what no facts are built in."""
    known = (
        "name",
        "source",
        "layers",
        "experts",
        "experts_per_token",
        "kv_bytes_per_token",
        "state_mb",
        "group",
    )
    table = Table(table.place, table.data, (*known, "width", "context"))
    groups = []
    for one in tables_of(table, "group", ("name", "role", "gb", "parameters_billion")):
        parameters = one.positive("parameters_billion")
        size = one.positive("gb")
        if size is None:
            raise one.refuse("gb", "is missing; add it")
        groups.append(
            Group(
                one.text("name"),
                one.choice("role", ROLES),
                round(size * GB),
                None if parameters is None else round(parameters * 1e9),
            )
        )
    if not groups:
        raise table.refuse("group", "is missing; add one [[model.stated.group]] at least")
    names = [group.name for group in groups]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise table.refuse("group", f"names {twice!r} twice; give each a name of its own")
    layers, state = count(table, "layers", 100_000), table.positive("state_mb")
    width = count(table, "width", 1 << 24)
    experts, chosen = count(table, "experts", 1 << 20), count(table, "experts_per_token", 1 << 20)
    if experts is not None and chosen is not None and chosen > experts:
        raise table.refuse(
            "experts_per_token", f"{chosen} are more than {experts} experts; correct one of them"
        )
    return ModelSizes(
        name=table.text("name"),
        source=table.text("source"),
        groups=tuple(groups),
        layers=layers,
        expert_layers=layers,
        experts=experts,
        experts_per_token=chosen,
        expert_width=width,
        hidden=width,
        kv_bytes_per_token=table.integer("kv_bytes_per_token", 0, 1 << 40, 0),
        state_bytes=round(state * 1e6) if state else 0,
        convolution_bytes=0,
        max_context=count(table, "context", 1 << 40),
    )

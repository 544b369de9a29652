"""The optimizer's state of tables with tiers, with the names and in the row order of the unsharded tables.

States have the names of TorchRec's fused optimizers, such as `items.momentum1` of the table `items`. SGD has none.

Shapes: R rows of a whole table, D columns.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torchrec.optim.rowwise_adagrad import RowWiseAdagrad

from neuroshard_pipeline.errors import PlanError
from neuroshard_pipeline.torchrec_bridge.tiered.replicas import Replicas
from neuroshard_pipeline.torchrec_bridge.tiered.state import (
    ColdShard,
    StoredRows,
    TableParts,
    TieredState,
    load_rows,
    shards_of,
    whole_rows,
)

#: State of a dense optimizer → the same state of TorchRec's fused optimizer.
FUSED_NAMES: dict[type[torch.optim.Optimizer], dict[str, str]] = {
    torch.optim.SGD: {},
    torch.optim.Adagrad: {"sum": "momentum1"},
    RowWiseAdagrad: {"sum": "momentum1"},
}

#: Name of a table's weights in the state of the unsharded module → name of a state of the optimizer → its values.
OptimizerState = dict[str, dict[str, torch.Tensor]]


def optimizer_state(module: TieredState) -> OptimizerState:
    """Collect the optimizer's state of whole tables on every rank. This is a collective.

    The states are in host memory. Those of a table are (R,) with row-wise Adagrad, and (R, D) with Adagrad.

    Raises:
        PlanError: the module has no tiers, its optimizer is not supported, or row-wise Adagrad updates column shards of
            cold rows.
    """
    every_state = list(_stored(module))  # raises all errors before the first collective
    found: OptimizerState = {parts.key: {} for parts in module.parts}
    for parts, name, stored in every_state:
        whole = whole_rows(parts, stored)
        found[parts.key][name] = whole[:, 0] if stored.width == 1 else whole
    return found


@torch.no_grad()
def load_optimizer_state(module: TieredState, state: Mapping[str, Mapping[str, torch.Tensor]]) -> None:
    """Set the optimizer's state to one that `optimizer_state` returned, of this module or of one with other cuts.

    Raises:
        PlanError: a state is missing or has another shape; or as for `optimizer_state`.
    """
    for parts, name, stored in _stored(module):
        whole = state.get(parts.key, {}).get(name)
        rows = parts.tiers.index.tables[parts.at].num_embeddings
        expected = (rows,) if stored.width == 1 else (rows, stored.width)
        if whole is None or tuple(whole.shape) != expected:
            given = "is missing" if whole is None else f"has the shape {tuple(whole.shape)}"
            raise PlanError(f"{parts.key}: the state {name!r} {given}; it must have the shape {expected}")
        load_rows(parts, stored, whole.reshape(rows, stored.width))


def _stored(module: TieredState) -> Iterator[tuple[TableParts, str, StoredRows]]:
    """Every state of every table, with its name."""
    if not isinstance(module, TieredState):
        raise PlanError(
            f"{type(module).__name__} is no module with tiers (put_tiers replaces only collections that have tiers in "
            "the plan); if TorchRec sharded it, save and load the state of its fused_optimizer"
        )
    weights = {} if module.cold is None else module.cold.state_dict()
    states = {} if module.cold is None else module.cold.fused_optimizer.state_dict()["state"]
    for parts in module.parts:
        optimizer = parts.tiers.optimizer_class
        if optimizer not in FUSED_NAMES:
            known = ", ".join(each.__name__ for each in FUSED_NAMES)
            raise PlanError(f"the state of {optimizer.__name__} cannot be saved or loaded; tiers support {known}")
        table = parts.tiers.index.tables[parts.at].name
        width = 1 if optimizer is RowWiseAdagrad else parts.tiers.embedding_dim
        for dense_name, name in FUSED_NAMES[optimizer].items():
            hot, host = (_dense(replicas, dense_name) for replicas in (parts.tiers.hot, parts.tiers.host))
            cold: tuple[ColdShard, ...] = ()
            if parts.cold_key is not None:
                cold_table = parts.cold_key.split(".", 1)[1].removesuffix(".weight")
                own = states.get(parts.cold_key, {}).get(f"{cold_table}.{name}")
                cold = tuple(_cold(parts, weights[parts.cold_key], own, width))
            yield parts, f"{table}.{name}", StoredRows(hot, host, cold, width)


def _dense(replicas: Replicas | None, name: str) -> torch.Tensor | None:
    if replicas is None:
        return None
    state: torch.Tensor = replicas.optimizer.state[replicas.weight][name]
    return state


def _cold(parts: TableParts, weight: Any, state: Any, width: int) -> Iterator[ColdShard]:
    """The shards of a state; TorchRec has it only on ranks with shards of the weights."""
    values = [] if state is None else [shard.tensor for shard in state.local_shards()]
    for shard in shards_of(weight, [of.view(len(of), -1) for of in values]):
        if width == 1 and shard.sizes[1] < parts.tiers.embedding_dim:
            raise PlanError(
                f"{parts.key}: row-wise Adagrad has a state for every column shard of a row, but one state per whole "
                "row is needed; shard the cold rows table_wise or row_wise"
            )
        yield shard if width > 1 else shard._replace(sizes=(shard.sizes[0], 1))

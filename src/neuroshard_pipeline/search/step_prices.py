"""Prices of a whole step in the form that a search needs: what a shard adds to its rank, and what to all ranks.

A price is the ms that a unit of work (`tables.step_work`) takes. The costs of the input dist and of TorchRec's own work
are linear in the shards of a rank (`cost_models.step`). A search therefore extends the shard embedding (the numbers by
which the compute cost model describes a shard) by one number, the ms that the shard adds to its rank. The embeddings of
column shards then hold all costs of a rank, except those of the all-to-alls of looked-up rows or their sums, and those
that all ranks share.

Shapes: S shards, H numbers that describe a shard's cost (shard embedding), Q quantities.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from neuroshard_pipeline.arrays import FloatArray, IntArray
from neuroshard_pipeline.cost_models.comm import ranks_per_host_of
from neuroshard_pipeline.cost_models.step import StepCostModel
from neuroshard_pipeline.search.models import Models
from neuroshard_pipeline.search.parts import GroupReduction
from neuroshard_pipeline.search.shard_cache import ShardKey, shard_embeddings, shard_works
from neuroshard_pipeline.tables.placed import distinct_shards
from neuroshard_pipeline.tables.replica_groups import groups_on_host, synced_bytes
from neuroshard_pipeline.tables.step_work import QUANTITIES, exchange_counts, group_of, joined_floats, kernel_of
from neuroshard_pipeline.tables.table import Shard, whole
from neuroshard_pipeline.tables.task import ShardingTask

_POOLED, _RETURNED, _REORDERED, _PERMUTED, _JOINED, _KERNELS, _GATHERED = (
    list(QUANTITIES).index(name)
    for name in ("pooled", "returned", "reordered", "permuted", "joined", "kernels", "gathered")
)
_EXCHANGES = [list(QUANTITIES).index(name) for name in ("modules", "groups")]


@dataclass(frozen=True)
class StepPrices:
    """Prices of one task.

    Attributes:
        task: the task.
        per_unit: ms per unit of every quantity of `tables.step_work`, (Q,), in the module and in the input dist (only
            in the module if the trainer hides the input dist).
        sync_ms_per_byte: ms per step for each byte that is averaged among replica groups; 0 for a single group.
    """

    task: ShardingTask
    per_unit: FloatArray
    sync_ms_per_byte: float = 0.0
    _known: dict[ShardKey, FloatArray] = field(default_factory=dict, init=False, repr=False)

    def _works(self, shards: Sequence[Shard]) -> FloatArray:
        return shard_works(self._known, shards, self.task)

    def own_ms(self, shards: Sequence[Shard]) -> FloatArray:
        """(S,) ms that each shard adds to its rank."""
        sync_ms = [self.sync_ms_per_byte * synced_bytes(each, self.task) for each in shards]
        return np.asarray(self._works(shards)[:, 0] @ self.per_unit + sync_ms)

    def gathered_ms(self, shards: Sequence[Shard]) -> FloatArray:
        """(S,) ms in which the rank of each shard copies its outputs, if its group has several kernels there."""
        return self._works(shards)[:, 0, _POOLED] * self.per_unit[_GATHERED]

    def reorder_ms(self, shards: Sequence[Shard]) -> FloatArray:
        """(S,) ms that every rank needs to reorder the outputs of a column-wise shard, once any table is cut."""
        reordered, permuted = self.per_unit[[_REORDERED, _PERMUTED]]
        prices = reordered + permuted / np.array([shard.embedding_dim for shard in shards])
        return np.asarray(self._works(shards)[:, 1, _RETURNED] * prices)

    def joined_at_most_ms(self, whole_tables: Sequence[Shard]) -> float:
        """Ms in which every rank joins the outputs if these tables, in one module, have several sharding types."""
        return float(sum(self._works(whole_tables)[:, 1, _RETURNED]) * self.per_unit[_JOINED])

    def groups_ms(self, shards: Sequence[Shard], others: Sequence[Shard]) -> float:
        """Ms that the groups (modules and types) of `shards` add to every rank; `others` belong to other groups."""
        (counts, joined_ms), (others_counts, others_ms) = map(self._groups, ([*shards, *others], others))
        return float(self.exchanges_ms(*counts - others_counts)) + (joined_ms - others_ms)

    def _groups(self, shards: Sequence[Shard]) -> tuple[IntArray, float]:
        """Numbers of modules and groups, and ms in which every rank joins outputs of several types of a module."""
        distinct, place = distinct_shards(shards)
        returned = np.bincount(place, minlength=len(distinct)) * self._works(distinct)[:, 1, _RETURNED]
        groups = list(map(group_of, distinct))
        joined = joined_floats(zip(distinct, groups, returned.tolist(), strict=True))
        return exchange_counts(groups), joined * float(self.per_unit[_JOINED])

    def exchanges_ms(self, modules: IntArray, groups: IntArray) -> FloatArray:
        """(...) ms that every rank needs because these numbers (...) of modules and groups exchange ids."""
        return np.asarray(self.per_unit[_EXCHANGES] @ np.stack([modules, groups]))

    def shared_ms(self, shards: Sequence[Shard]) -> FloatArray:
        """(S,) ms that each shard adds to every rank."""
        return np.asarray(self._works(shards)[:, 1] @ self.per_unit)


def step_prices(step: StepCostModel, task: ShardingTask) -> StepPrices:
    """The prices of a task from a step cost model."""
    per_unit = step.prices_of("module", task.world_size)
    if not task.pipelines_input_dist:
        per_unit = per_unit + step.prices_of("input_dist", task.world_size)
    return StepPrices(task, per_unit, _sync_ms_per_byte(step, task))


def _sync_ms_per_byte(step: StepCostModel, task: ShardingTask) -> float:
    """Ms per step for each byte that is averaged among replica groups, if all ranks have equally many bytes."""
    mean = sum(synced_bytes(whole(table), task) for table in task.tables) / task.world_size
    if not mean:
        return 0.0
    copies, on_host = task.num_replica_groups, groups_on_host(task, ranks_per_host_of(step.provenance))
    averaging = GroupReduction("all_reduce", np.array(mean), copies, on_host, at_once=task.ranks_per_host)
    return float(step.reductions.predict_ms(*averaging.priced_as)) / mean / task.sync_interval


class WholeStepCompute:
    """A compute model whose embeddings have one more number, the ms of `StepPrices.own_ms`.

    If the whole tables of the task need K > 1 kernels (`step_work.kernel_of`), an embedding has K blocks of H + 2
    numbers, of which only the block of the kernel of the shard's table is not 0. The last numbers of a block are the ms
    of `StepPrices.gathered_ms`, and the number of shards.
    """

    def __init__(self, models: Models, prices: StepPrices) -> None:
        self._models, self._prices = models, prices
        kernels = dict.fromkeys(kernel_of(whole(table)) for table in prices.task.tables)
        self._kernels = {kernel: number for number, kernel in enumerate(kernels)}
        groups = dict.fromkeys(group for group, *_ in kernels)
        self._in_group = np.array([[group == each for each in groups] for group, *_ in kernels], dtype=float)  # (K, G)

    def shard_embeddings(self, shards: Sequence[Shard], batch_size: int, optimizer: str = "sgd") -> FloatArray:  # noqa: ARG002
        """Embeddings (S, H + 1), or (S, K * (H + 2) + 1)."""
        embeddings = shard_embeddings(shards, self._prices.task, self._models)
        own_ms = self._prices.own_ms(shards)[:, None]
        if len(self._kernels) == 1:
            return np.concatenate([embeddings, own_ms], axis=1)
        blocks = np.zeros((len(shards), len(self._kernels), embeddings.shape[1] + 2))
        of_shards = [self._kernels[kernel_of(whole(shard.table))] for shard in shards]
        blocks[np.arange(len(shards)), of_shards, :-2] = embeddings
        blocks[np.arange(len(shards)), of_shards, -2] = self._prices.gathered_ms(shards)
        blocks[np.arange(len(shards)), of_shards, -1] = 1.0
        return np.concatenate([blocks.reshape(len(shards), -1), own_ms], axis=1)

    def costs_from_sums(self, sums: FloatArray, batch_size: int) -> FloatArray:
        """Forward and backward ms (..., 2); the forward part holds what `StepPrices` adds."""
        costs = self._of_kernels(self._models.compute.costs_from_sums, sums, batch_size)
        costs[..., 0] += self._added_ms(sums)
        return costs

    def interval_from_sums(self, sums: FloatArray, batch_size: int) -> FloatArray:
        """Lower and upper bound (..., 2), moved by what `StepPrices` adds."""
        bounds = self._of_kernels(self._models.compute.interval_from_sums, sums, batch_size)
        return bounds + self._added_ms(sums)[..., None]

    def _of_kernels(self, predict: Callable[..., FloatArray], sums: FloatArray, batch_size: int) -> FloatArray:
        if len(self._kernels) == 1:
            return predict(sums[..., :-1], batch_size)
        blocks = self._blocks(sums)
        costs = np.where(blocks[..., -1:] > 0, predict(blocks[..., :-2], batch_size), 0.0)
        return np.asarray(costs.sum(axis=-2))

    def _added_ms(self, sums: FloatArray) -> FloatArray:
        """(...) what `StepPrices` adds."""
        if len(self._kernels) == 1:
            return sums[..., -1]
        blocks = self._blocks(sums)
        kernels, gathered_ms = (blocks[..., -1] > 0) @ self._in_group, blocks[..., -2] @ self._in_group  # (..., G)
        of_groups = np.where(kernels > 1, gathered_ms + (kernels - 1) * self._prices.per_unit[_KERNELS], 0.0)
        return np.asarray(sums[..., -1] + of_groups.sum(axis=-1))

    def _blocks(self, sums: FloatArray) -> FloatArray:
        return sums[..., :-1].reshape(*sums.shape[:-1], len(self._kernels), sums.shape[-1] // len(self._kernels))

"""A sharded `EmbeddingCollection` whose tables have tiers.

Hot rows are on every rank, host rows on every host, and cold rows are sharded by TorchRec.

Shapes: F features (a feature that looks up several tables counts once per table), B samples of this rank, N ids of
this rank, U rows that are looked up for them, D columns.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torchrec.distributed.types import Awaitable, LazyAwaitable
from torchrec.modules.embedding_modules import EmbeddingCollection
from torchrec.sparse.jagged_tensor import JaggedTensor, KeyedJaggedTensor

from neuroshard_pipeline.torchrec_bridge.tiered.base import LookedUp, TieredContext, TieredIds, TieredModule
from neuroshard_pipeline.torchrec_bridge.tiered.popular import PopularTiers

#: The cold ids of a table go to TorchRec in this many bags of nearly equal length per rank. The bags of a sequence
#: table need not be its samples, because only the order of the ids counts. FBGEMM looks up a bag per warp on GPUs, so
#: a single bag would be slow; a bag per sample would send more lengths.
BAGS_PER_TABLE = 64


class TieredEmbeddingCollection(TieredModule):
    """Returns what the unsharded `EmbeddingCollection` returns. `build.tiered_embeddings` makes and describes it.

    Args:
        module: the unsharded module.
        tiers: hot and host rows of all tables.
        cold: TorchRec's sharded module of the cold rows, whose tables have one feature of the same name; None if
            there are no cold rows.
        cold_names: for every table, its name in `cold`, or None if it has no cold rows.
        index_dedup: whether every distinct id of this rank's samples is looked up and exchanged once.
    """

    def __init__(
        self,
        module: EmbeddingCollection,
        tiers: PopularTiers,
        cold: Any,
        cold_names: Sequence[str | None],
        index_dedup: bool,
    ) -> None:
        super().__init__(
            [tiers], cold, [name for config in module.embedding_configs() for name in config.feature_names]
        )
        self._cold_names, self._index_dedup = cold_names, index_dedup
        self._need_indices = module.need_indices()
        names = module.embedding_names_by_table()
        self._outputs = [name for of_table in names for name in of_table]  # (F,)
        tables = [at for at, of_table in enumerate(names) for _ in of_table]
        self._table_of_feature = torch.tensor(tables, device=tiers.device)

    def input_dist(
        self, ctx: TieredContext, features: KeyedJaggedTensor, *_: Any, **__: Any
    ) -> Awaitable[Awaitable[TieredIds]]:
        """Split the ids by tiers and start to exchange host ids and cold ids."""
        with torch.no_grad():
            ctx.features = features = self.in_order(features)
            index = self.tiers[0].index
            lengths = torch.tensor(features.length_per_key(), device=features.device())
            table = self._table_of_feature.repeat_interleave(lengths)
            keys = index.keys_of(features.values().long(), table)
            if self._index_dedup:
                keys, ctx.inverse = torch.unique(keys, return_inverse=True)
                table = torch.empty_like(keys).scatter_(0, ctx.inverse, table)
            split = index.split(keys, table)
            ctx.splits = [split]
            cold_ids = None if self.cold is None else self._cold_ids(split.cold, table[split.cold_at])
            return self.started(ctx, cold_ids)

    def output_dist(self, ctx: TieredContext, output: LookedUp) -> LazyAwaitable[dict[str, JaggedTensor]]:
        """Start to exchange cold rows, and exchange host rows; the awaitable looks up hot rows and joins all rows."""
        return _Sequences(self, ctx, *self.exchanged(ctx, output))

    def _cold_ids(self, rows: torch.Tensor, table: torch.Tensor) -> KeyedJaggedTensor:
        """Cold rows, which are ordered by table, as ids of the cold tables."""
        counts = table.bincount(minlength=len(self._cold_names))
        has_cold = [at for at, name in enumerate(self._cold_names) if name is not None]
        counts = counts[has_cold, None]
        bags = torch.arange(BAGS_PER_TABLE, device=rows.device)
        lengths = counts // BAGS_PER_TABLE + (bags < counts % BAGS_PER_TABLE)
        names = [name for name in self._cold_names if name is not None]
        return KeyedJaggedTensor(names, rows, lengths=lengths.flatten().int())

    def _joined(self, ctx: TieredContext, cold: Any, host: torch.Tensor) -> dict[str, JaggedTensor]:
        """The rows of all tiers in the order of the ids, by the names of the outputs; waits for cold rows last."""
        split, request, features = ctx.splits[0], ctx.requests[0], ctx.features
        assert features is not None
        parts = [self.tiers[0].hot_rows(split.hot), host]
        if cold is not None:
            rows_of = cold.wait()
            parts += [rows_of[name].values() for name in self._cold_names if name is not None]
        host_at = split.host_at if request is None else split.host_at[request.order]
        rows = ordered_rows(torch.cat(parts), torch.cat([split.hot_at, host_at, split.cold_at]), ctx.inverse)
        lengths = features.lengths().view(len(self._outputs), -1).unbind()
        per_feature = features.length_per_key()
        ids: Sequence[Any] = [None] * len(lengths)
        if self._need_indices:
            ids = features.values().split(per_feature)
        return {
            name: JaggedTensor(values, lengths=own, weights=looked_up)
            for name, values, own, looked_up in zip(self._outputs, rows.split(per_feature), lengths, ids, strict=True)
        }

    @property
    def unsharded_module_type(self) -> type[EmbeddingCollection]:
        """The type of the module that this one replaces."""
        return EmbeddingCollection


class _Sequences(LazyAwaitable[dict[str, JaggedTensor]]):
    def __init__(
        self, module: TieredEmbeddingCollection, context: TieredContext, cold: Any, host: list[torch.Tensor]
    ) -> None:
        super().__init__()
        self._parts = module, context, cold, host

    def _wait_impl(self) -> dict[str, JaggedTensor]:
        module, context, cold, host = self._parts
        return module._joined(context, cold, host[0])


def ordered_rows(rows: torch.Tensor, positions: torch.Tensor, inverse: torch.Tensor | None) -> torch.Tensor:
    """Rows in another order.

    Args:
        rows: (U, D) rows.
        positions: (U,) a permutation: row i becomes row `positions[i]`.
        inverse: (N,) numbers of the reordered rows to return, or None for all of them in order.
    """
    if inverse is None:
        ordered: torch.Tensor = _Permuted.apply(rows, positions)
        return ordered
    return rows.index_select(0, _inverted(positions)[inverse])


class _Permuted(torch.autograd.Function):
    """A permutation of rows. Its backward pass only reads rows; the backward pass of `index_select` adds rows up."""

    @staticmethod
    def forward(ctx: Any, rows: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(positions)
        return rows.index_select(0, _inverted(positions))

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        (positions,) = ctx.saved_tensors
        return gradients[0].index_select(0, positions), None


def _inverted(permutation: torch.Tensor) -> torch.Tensor:
    numbers = torch.arange(len(permutation), device=permutation.device)
    return torch.empty_like(permutation).scatter_(0, permutation, numbers)

"""A sharded `EmbeddingCollection` whose tables have tiers.

Shapes: F features (a feature that looks up several tables counts once per table), B samples of this rank, N ids of
this rank, D columns.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torchrec.distributed.types import Awaitable, LazyAwaitable, NoWait, ShardedModule
from torchrec.modules.embedding_modules import EmbeddingCollection
from torchrec.optim.fused import FusedOptimizerModule
from torchrec.optim.keyed import CombinedOptimizer, KeyedOptimizer
from torchrec.sparse.jagged_tensor import JaggedTensor, KeyedJaggedTensor
from torchrec.streamable import Multistreamable

from neuroshard_pipeline.errors import PlanError
from neuroshard_pipeline.torchrec_bridge.tiered.exchange import RowRequest
from neuroshard_pipeline.torchrec_bridge.tiered.index import TierRows
from neuroshard_pipeline.torchrec_bridge.tiered.popular import PopularTiers
from neuroshard_pipeline.torchrec_bridge.tiered.state import TieredState

#: The ids of a table go to TorchRec in this many bags of equal length per rank. The bags of a sequence table need not
#: be those of the samples, because only the order of the ids counts. FBGEMM looks up a bag per warp on GPUs, so a
#: single bag would be slow; a bag per sample would send more lengths.
BAGS_PER_TABLE = 64


@dataclass
class TieredIds(Multistreamable):
    """Ids after the input dist: those of cold rows as TorchRec holds them, and the requests for host rows."""

    cold: Any
    requests: list[RowRequest | None]

    def record_stream(self, stream: torch.Stream) -> None:
        """Keep the tensors until the work of `stream` is done."""
        for part in (self.cold, *self.requests):
            if part is not None:
                part.record_stream(stream)


@dataclass
class TieredContext(Multistreamable):
    """What one step must remember between its parts.

    Attributes:
        cold: the context of TorchRec's module.
        splits: the tiers of the ids.
        requests: the requests for host rows.
        features: the ids in the order of the tables.
        inverse: (N,) for every id its place among the distinct ids, or None if ids are not deduplicated.
    """

    cold: Any
    splits: list[TierRows] = field(default_factory=list)
    requests: list[RowRequest | None] = field(default_factory=list)
    features: KeyedJaggedTensor | None = None
    inverse: torch.Tensor | None = None

    def record_stream(self, stream: torch.Stream) -> None:
        """Keep the tensors until the work of `stream` is done."""
        parts = [self.cold, self.features, self.inverse, *self.requests]
        for part in (*parts, *(tensor for split in self.splits for tensor in split)):
            if part is not None:
                part.record_stream(stream)


class SplitsInFlight(Awaitable[Awaitable[TieredIds]]):
    """The input dist of all tiers: `wait` starts the exchange of ids, whose `wait` gives them."""

    def __init__(
        self, context: TieredContext, cold: Awaitable[Any], requests: Sequence[Awaitable[Awaitable[RowRequest | None]]]
    ) -> None:
        super().__init__()
        self._parts = context, cold, requests

    def _wait_impl(self) -> Awaitable[TieredIds]:
        context, cold, requests = self._parts
        started = [request.wait() for request in requests]
        return _IdsInFlight(context, cold.wait(), started)


class _IdsInFlight(Awaitable[TieredIds]):
    def __init__(
        self, context: TieredContext, cold: Awaitable[Any], requests: Sequence[Awaitable[RowRequest | None]]
    ) -> None:
        super().__init__()
        self._parts = context, cold, requests

    def _wait_impl(self) -> TieredIds:
        context, cold, requests = self._parts
        context.requests = [request.wait() for request in requests]
        return TieredIds(cold.wait(), context.requests)


class TieredEmbeddingCollection(
    TieredState, ShardedModule[TieredIds, Any, dict[str, JaggedTensor], TieredContext], FusedOptimizerModule
):
    """Rows of sequence tables by their tier; returns what the unsharded `EmbeddingCollection` returns.

    Hot rows, host rows and cold rows are updated in the backward pass. `build.tiered_embeddings` makes such a module
    and describes it.

    Args:
        module: the unsharded module.
        tiers: hot and host rows of all tables.
        cold: TorchRec's sharded module of the cold rows, whose tables have one feature of the same name; None if
            there are no cold rows.
        cold_names: name of every table in `cold`, or None for a table without cold rows.
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
        super().__init__()
        self.tiers = tiers
        # Not registered as a submodule: its weights are read and written under the names of the unsharded tables.
        self.__dict__["cold"] = cold
        self._cold_names, self._index_dedup = cold_names, index_dedup
        self._need_indices = module.need_indices()
        names = module.embedding_names_by_table()
        self._outputs = [name for of_table in names for name in of_table]  # (F,)
        self._features = [name for config in module.embedding_configs() for name in config.feature_names]  # (F,)
        tables = [at for at, of_table in enumerate(names) for _ in of_table]
        self._table_of_feature = torch.tensor(tables, device=tiers.device)
        self._order: list[int] | None = None

    def create_context(self) -> TieredContext:
        """The context of a step."""
        return TieredContext(None if self.cold is None else self.cold.create_context())

    def input_dist(
        self, ctx: TieredContext, features: KeyedJaggedTensor, *_: Any, **__: Any
    ) -> Awaitable[Awaitable[TieredIds]]:
        """Split the ids by tiers and start to exchange host ids and cold ids."""
        with torch.no_grad():
            ctx.features = features = self._in_order(features)
            lengths = torch.tensor(features.length_per_key(), device=features.device())
            table = self._table_of_feature.repeat_interleave(lengths)
            keys = self.tiers.index.keys_of(features.values().long(), table)
            if self._index_dedup:
                keys, ctx.inverse = torch.unique(keys, return_inverse=True)
                table = torch.empty_like(keys).scatter_(0, ctx.inverse, table)
            split = self.tiers.index.split(keys, table)
            ctx.splits = [split]
            requests = [self.tiers.ask(split.host)]
            cold = NoWait(NoWait(None))
            if self.cold is not None:
                cold = self.cold.input_dist(ctx.cold, self._cold_ids(split.cold, table[split.cold_at]))
            return SplitsInFlight(ctx, cold, requests)

    def compute(self, ctx: TieredContext, dist_input: TieredIds) -> tuple[list[torch.Tensor], torch.Tensor]:
        """Look up cold rows and the host rows that this rank was asked for."""
        cold = [] if self.cold is None else self.cold.compute(ctx.cold, dist_input.cold)
        return cold, self.tiers.served_rows(dist_input.requests[0])

    def output_dist(
        self, ctx: TieredContext, output: tuple[list[torch.Tensor], torch.Tensor]
    ) -> LazyAwaitable[dict[str, JaggedTensor]]:
        """Exchange cold rows and host rows, and look up hot rows meanwhile."""
        cold, host = output
        awaitable = None if self.cold is None else self.cold.output_dist(ctx.cold, cold)
        return _Sequences(self, ctx, awaitable, self.tiers.exchange(host, ctx.requests[0]))

    def _in_order(self, features: KeyedJaggedTensor) -> KeyedJaggedTensor:
        """The features in the order of the tables."""
        if features.variable_stride_per_key():
            raise PlanError("tables with tiers need the same number of samples for all features of a batch")
        if self._order is None:
            keys = list(features.keys())
            self._order = [keys.index(name) for name in self._features]
        if self._order == list(range(len(features.keys()))):
            return features
        return features.permute(self._order)

    def _cold_ids(self, rows: torch.Tensor, table: torch.Tensor) -> KeyedJaggedTensor:
        """Cold rows, which are ordered by table, as ids of the cold tables."""
        counts = table.bincount(minlength=len(self._cold_names))
        has_cold = [at for at, name in enumerate(self._cold_names) if name is not None]
        counts = counts[has_cold, None]
        bags = torch.arange(BAGS_PER_TABLE, device=rows.device)
        lengths = counts // BAGS_PER_TABLE + (bags < counts % BAGS_PER_TABLE)
        names = [name for name in self._cold_names if name is not None]
        return KeyedJaggedTensor(names, rows, lengths=lengths.flatten().int())

    def _joined(
        self, ctx: TieredContext, cold: Mapping[str, JaggedTensor], host: torch.Tensor
    ) -> dict[str, JaggedTensor]:
        """The rows of all tiers in the order of the ids, by the names of the outputs."""
        split, request, features = ctx.splits[0], ctx.requests[0], ctx.features
        assert features is not None
        parts = [self.tiers.hot_rows(split.hot), host]
        parts += [cold[name].values() for name in self._cold_names if name is not None]
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
    def fused_optimizer(self) -> KeyedOptimizer:
        """The optimizer of cold rows; those of hot and host rows are `tiers.optimizers`."""
        return CombinedOptimizer([]) if self.cold is None else self.cold.fused_optimizer

    @property
    def unsharded_module_type(self) -> type[EmbeddingCollection]:
        """The type of the module that this one replaces."""
        return EmbeddingCollection


class _Sequences(LazyAwaitable[dict[str, JaggedTensor]]):
    def __init__(
        self, module: TieredEmbeddingCollection, context: TieredContext, cold: Any, host: torch.Tensor
    ) -> None:
        super().__init__()
        self._parts = module, context, cold, host

    def _wait_impl(self) -> dict[str, JaggedTensor]:
        module, context, cold, host = self._parts
        return module._joined(context, {} if cold is None else cold.wait(), host)


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
    """A permutation of rows whose backward reads rows in turn, where that of `index_select` adds them up."""

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

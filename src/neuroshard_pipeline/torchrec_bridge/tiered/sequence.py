"""A sharded `EmbeddingCollection` whose tables have tiers: the parts of its step, and what a step remembers.

Hot rows are on every rank, host rows on every host, and cold rows are sharded by TorchRec.

Shapes: F features (a feature that looks up several tables counts once per table), B samples of this rank, N ids of
this rank, U rows that are looked up for them, D columns.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any

import torch
from torchrec.distributed.types import Awaitable, LazyAwaitable, NoWait, ShardedModule
from torchrec.modules.embedding_modules import EmbeddingCollection
from torchrec.optim.fused import FusedOptimizerModule
from torchrec.optim.keyed import CombinedOptimizer, KeyedOptimizer
from torchrec.sparse.jagged_tensor import JaggedTensor, KeyedJaggedTensor
from torchrec.streamable import Multistreamable

from neuroshard_pipeline.errors import PlanError
from neuroshard_pipeline.torchrec_bridge.tiered.exchange import Later, RowRequest
from neuroshard_pipeline.torchrec_bridge.tiered.index import TierRows
from neuroshard_pipeline.torchrec_bridge.tiered.popular import PopularTiers
from neuroshard_pipeline.torchrec_bridge.tiered.state import TableParts, TieredState

#: The cold ids of a table go to TorchRec in this many bags of nearly equal length per rank. The bags of a sequence
#: table need not be its samples, because only the order of the ids counts. FBGEMM looks up a bag per warp on GPUs, so
#: a single bag would be slow; a bag per sample would send more lengths.
BAGS_PER_TABLE = 64

#: The cold rows that this rank looked up, one tensor per lookup of TorchRec's module, and then the host rows that it
#: was asked for.
LookedUp = list[torch.Tensor]
Sequences = dict[str, JaggedTensor]


@dataclass
class TieredIds(Multistreamable):
    """Ids after the input dist: ids of cold rows as TorchRec holds them, and the request for host rows."""

    cold: Any
    request: RowRequest | None

    def record_stream(self, stream: torch.Stream) -> None:
        """Keep the tensors until the work of `stream` is done."""
        _record(stream, self.cold, self.request)


@dataclass
class TieredContext(Multistreamable):
    """What one step must remember between its parts.

    It consists of the context of TorchRec's module, the tiers of the ids with their rows in these tiers, the request
    for host rows, the ids of all features in the order in which the module processes them, and for every id its place
    among the distinct ids (N,), or None if ids are not deduplicated.
    """

    cold: Any
    split: TierRows | None = None
    request: RowRequest | None = None
    features: KeyedJaggedTensor | None = None
    inverse: torch.Tensor | None = None

    def record_stream(self, stream: torch.Stream) -> None:
        """Keep the tensors until the work of `stream` is done."""
        _record(stream, self.cold, self.features, self.inverse, self.request, *(self.split or ()))


def _record(stream: torch.Stream, *parts: Any) -> None:
    for part in parts:
        if part is not None:
            part.record_stream(stream)


class TieredEmbeddingCollection(
    TieredState, ShardedModule[TieredIds, LookedUp, Sequences, TieredContext], FusedOptimizerModule
):
    """Returns what the unsharded `EmbeddingCollection` returns. `build.tiered_embeddings` makes and describes it.

    Hot, host and cold rows are updated in the backward pass.

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
        super().__init__()
        self.tiers = tiers
        self.parts = [
            TableParts(f"embeddings.{table.name}.weight", tiers, at, name and f"embeddings.{name}.weight")
            for at, (table, name) in enumerate(zip(tiers.index.tables, cold_names, strict=True))
        ]
        # Not registered as a submodule: its weights are read and written under the names of the unsharded tables.
        self.__dict__["cold"] = cold
        self._cold_names, self._index_dedup, self._need_indices = cold_names, index_dedup, module.need_indices()
        self._features = [name for config in module.embedding_configs() for name in config.feature_names]
        self._order: list[int] | None = None
        names = module.embedding_names_by_table()
        self._outputs = [name for of_table in names for name in of_table]  # (F,)
        tables = [at for at, of_table in enumerate(names) for _ in of_table]
        self._table_of_feature = torch.tensor(tables, device=tiers.device)

    def create_context(self) -> TieredContext:
        """The context of a step."""
        return TieredContext(None if self.cold is None else self.cold.create_context())

    def input_dist(
        self, ctx: TieredContext, features: KeyedJaggedTensor, *_: Any, **__: Any
    ) -> Awaitable[Awaitable[TieredIds]]:
        """Split the ids by tiers and start to exchange host ids and cold ids."""
        with torch.no_grad():
            ctx.features = features = self._in_order(features)
            index = self.tiers.index
            lengths = torch.tensor(features.length_per_key(), device=features.device())
            table = self._table_of_feature.repeat_interleave(lengths)
            keys = index.keys_of(features.values().long(), table)
            if self._index_dedup:
                keys, ctx.inverse = torch.unique(keys, return_inverse=True)
                table = torch.empty_like(keys).scatter_(0, ctx.inverse, table)
            ctx.split = split = index.split(keys, table)
            asked, cold = self.tiers.ask(split.host), NoWait(NoWait(None))
            if self.cold is not None:
                cold = self.cold.input_dist(ctx.cold, self._cold_ids(split.cold, table[split.cold_at]))

        def ids(asked: Awaitable[RowRequest | None], cold: Awaitable[Any]) -> TieredIds:
            ctx.request = asked.wait()
            return TieredIds(cold.wait(), ctx.request)

        def started() -> Awaitable[TieredIds]:
            of_host, of_all = asked.wait(), cold.wait()
            return Later(lambda: ids(of_host, of_all))

        return Later(started)

    def compute(self, ctx: TieredContext, dist_input: TieredIds | Sequence[TieredIds]) -> LookedUp:
        """Look up cold rows and the host rows that this rank was asked for.

        `TrainPipelineSparseDist` gives the ids in a list.
        """
        ids = dist_input if isinstance(dist_input, TieredIds) else dist_input[0]
        cold = [] if self.cold is None else self.cold.compute(ctx.cold, ids.cold)
        return [*cold, self.tiers.served_rows(ids.request)]

    def output_dist(self, ctx: TieredContext, output: LookedUp) -> LazyAwaitable[Sequences]:
        """Start to exchange cold rows, and exchange host rows; the awaitable looks up hot rows and joins all rows."""
        *rows, served = output
        cold = None if self.cold is None else self.cold.output_dist(ctx.cold, rows)
        host = self.tiers.exchange(served, ctx.request)
        return _Joined(lambda: self._joined(ctx, cold, host))

    def _in_order(self, features: KeyedJaggedTensor) -> KeyedJaggedTensor:
        """The features in the order in which their ids are processed; some may occur several times."""
        if features.variable_stride_per_key():
            raise PlanError("tables with tiers need the same number of samples for all features of a batch")
        keys = list(features.keys())
        if self._order is None:
            self._order = [keys.index(name) for name in self._features]
        return features if self._order == list(range(len(keys))) else features.permute(self._order)

    def _cold_ids(self, rows: torch.Tensor, table: torch.Tensor) -> KeyedJaggedTensor:
        """Cold rows, which are ordered by table, as ids of the cold tables."""
        has_cold = [at for at, name in enumerate(self._cold_names) if name is not None]
        counts = table.bincount(minlength=len(self._cold_names))[has_cold, None]
        bags = torch.arange(BAGS_PER_TABLE, device=rows.device)
        lengths = counts // BAGS_PER_TABLE + (bags < counts % BAGS_PER_TABLE)
        names = [name for name in self._cold_names if name is not None]
        return KeyedJaggedTensor(names, rows, lengths=lengths.flatten().int())

    def _joined(self, ctx: TieredContext, cold: Any, host: torch.Tensor) -> Sequences:
        """The rows of all tiers in the order of the ids, by the names of the outputs; waits for cold rows last."""
        split, request, features = ctx.split, ctx.request, ctx.features
        assert features is not None and split is not None, "input_dist comes first"  # noqa: PT018
        parts = [self.tiers.hot_rows(split.hot), host]
        if cold is not None:
            rows_of = cold.wait()
            parts += [rows_of[name].values() for name in self._cold_names if name is not None]
        host_at = split.host_at if request is None else split.host_at[request.order]
        rows = _ordered(torch.cat(parts), torch.cat([split.hot_at, host_at, split.cold_at]), ctx.inverse)
        lengths = features.lengths().view(len(self._outputs), -1).unbind()
        per_feature = features.length_per_key()
        ids = features.values().split(per_feature) if self._need_indices else [None] * len(lengths)
        return {
            name: JaggedTensor(values, lengths=own, weights=looked_up)
            for name, values, own, looked_up in zip(self._outputs, rows.split(per_feature), lengths, ids, strict=True)
        }

    @property
    def fused_optimizer(self) -> KeyedOptimizer:
        """The optimizer of cold rows."""
        return CombinedOptimizer([]) if self.cold is None else self.cold.fused_optimizer

    @property
    def unsharded_module_type(self) -> type[EmbeddingCollection]:
        """The type of the module that this one replaces."""
        return EmbeddingCollection

    def set_learning_rate(self, learning_rate: float) -> None:
        """Set the learning rate of all rows from the next step on.

        Raises:
            PlanError: the rate is not a finite number of at least 0.
        """
        if not isinstance(learning_rate, Real) or not 0 <= learning_rate < math.inf:  # or NaN
            raise PlanError(f"learning_rate {learning_rate!r} must be a finite number of at least 0")
        for optimizer in (self.fused_optimizer, *self.tiers.optimizers):
            for group in optimizer.param_groups:
                group["lr"] = learning_rate
        self.fused_optimizer.step()  # TorchRec's kernels take over the rate; the weights stay as they are


class _Joined(LazyAwaitable[Sequences]):
    def __init__(self, join: Callable[[], Sequences]) -> None:
        super().__init__()
        self._join = join

    def _wait_impl(self) -> Sequences:
        return self._join()


def _ordered(rows: torch.Tensor, positions: torch.Tensor, inverse: torch.Tensor | None) -> torch.Tensor:
    """Rows (U, D) in another order: row i becomes row `positions[i]`; of these, the rows `inverse` (N,), or all."""
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

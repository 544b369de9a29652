"""What all modules with tiers have in common: the parts of a step, its context, and optimizers.

Tiers are parts of a table's rows by popularity: hot rows on every rank, host rows on every host, cold rows sharded.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from numbers import Real
from typing import Any

import torch
from torchrec.distributed.types import Awaitable, NoWait, ShardedModule
from torchrec.optim.fused import FusedOptimizerModule
from torchrec.optim.keyed import CombinedOptimizer, KeyedOptimizer
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor
from torchrec.streamable import Multistreamable

from neuroshard_pipeline.errors import PlanError
from neuroshard_pipeline.torchrec_bridge.tiered.exchange import RowRequest
from neuroshard_pipeline.torchrec_bridge.tiered.index import TierRows
from neuroshard_pipeline.torchrec_bridge.tiered.popular import PopularTiers
from neuroshard_pipeline.torchrec_bridge.tiered.state import TieredState

#: The cold rows that this rank looked up, one tensor per lookup of TorchRec's module, and then the host rows that it
#: was asked for, one tensor per width.
LookedUp = list[torch.Tensor]


@dataclass
class TieredIds(Multistreamable):
    """Ids after the input dist: ids of cold rows as TorchRec holds them, and requests for host rows."""

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
        splits: for every width of tables, the tiers of the ids and their rows in these tiers.
        requests: the requests for host rows.
        features: the ids of all features, in the order in which the module processes the features.
        inverse: (N,) for every id its place among the distinct ids, or None if ids are not deduplicated.
        pooling: for pooled tables by width, the bags (N,) of the ids, and their weights (N,) or None.
    """

    cold: Any
    splits: list[TierRows] = field(default_factory=list)
    requests: list[RowRequest | None] = field(default_factory=list)
    features: KeyedJaggedTensor | None = None
    inverse: torch.Tensor | None = None
    pooling: list[tuple[torch.Tensor, torch.Tensor | None]] = field(default_factory=list)

    def record_stream(self, stream: torch.Stream) -> None:
        """Keep the tensors until the work of `stream` is done."""
        parts = [self.cold, self.features, self.inverse, *self.requests]
        parts += [tensor for of_width in (*self.splits, *self.pooling) for tensor in of_width]
        for part in parts:
            if part is not None:
                part.record_stream(stream)


class SplitsInFlight(Awaitable[Awaitable[TieredIds]]):
    """The input dist of all tiers: `wait` starts the exchange of ids and returns an awaitable of the ids.

    `TrainPipelineSparseDist` waits for all `awaitables` of a module's input dist. Here, this object is the only one.
    """

    def __init__(
        self, context: TieredContext, cold: Awaitable[Any], requests: Sequence[Awaitable[Awaitable[RowRequest | None]]]
    ) -> None:
        super().__init__()
        self._parts = context, cold, requests
        self.awaitables = [self]

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


class TieredModule(TieredState, ShardedModule[TieredIds, LookedUp, Any, TieredContext], FusedOptimizerModule):
    """A sharded module whose tables have tiers. Hot, host and cold rows are updated in the backward pass.

    Args:
        tiers: hot and host rows, one element per width of tables.
        cold: TorchRec's sharded module of the cold rows, or None if there are none.
        features: the features in the order in which their ids are processed. A feature that looks up several tables
            occurs several times.
    """

    def __init__(self, tiers: Sequence[PopularTiers], cold: Any, features: Sequence[str]) -> None:
        super().__init__()
        self._tiers = torch.nn.ModuleList(tiers)  # registers the weights
        self.tiers = tuple(tiers)
        # Not registered as a submodule: its weights are read and written under the names of the unsharded tables.
        self.__dict__["cold"] = cold
        self._features = list(features)
        self._order: list[int] | None = None

    def create_context(self) -> TieredContext:
        """The context of a step."""
        return TieredContext(None if self.cold is None else self.cold.create_context())

    def compute(self, ctx: TieredContext, dist_input: TieredIds | Sequence[TieredIds]) -> LookedUp:
        """Look up cold rows and the host rows that this rank was asked for.

        `TrainPipelineSparseDist` gives the ids in a list.
        """
        ids = dist_input if isinstance(dist_input, TieredIds) else dist_input[0]
        cold = [] if self.cold is None else self.cold.compute(ctx.cold, ids.cold)
        served = [own.served_rows(asked) for own, asked in zip(self.tiers, ids.requests, strict=True)]
        return [*cold, *served]

    def started(self, ctx: TieredContext, cold_ids: KeyedJaggedTensor | None) -> Awaitable[Awaitable[TieredIds]]:
        """Start to exchange ids of host rows (the context has them) and ids of cold rows."""
        requests = [own.ask(split.host) for own, split in zip(self.tiers, ctx.splits, strict=True)]
        cold = NoWait(NoWait(None)) if cold_ids is None else self.cold.input_dist(ctx.cold, cold_ids)
        return SplitsInFlight(ctx, cold, requests)

    def exchanged(self, ctx: TieredContext, output: LookedUp) -> tuple[Any, list[torch.Tensor]]:
        """TorchRec's awaitable of the cold rows (None without cold rows), and the host rows by width."""
        cold, served = output[: -len(self.tiers)], output[-len(self.tiers) :]
        awaitable = None if self.cold is None else self.cold.output_dist(ctx.cold, cold)
        parts = zip(self.tiers, served, ctx.requests, strict=True)
        return awaitable, [own.exchange(rows, asked) for own, rows, asked in parts]

    def in_order(self, features: KeyedJaggedTensor) -> KeyedJaggedTensor:
        """The features in the order in which their ids are processed."""
        if features.variable_stride_per_key():
            raise PlanError("tables with tiers need the same number of samples for all features of a batch")
        if self._order is None:
            keys = list(features.keys())
            self._order = [keys.index(name) for name in self._features]
        if self._order == list(range(len(features.keys()))):
            return features
        return features.permute(self._order)

    @property
    def fused_optimizer(self) -> KeyedOptimizer:
        """The optimizer of cold rows."""
        return CombinedOptimizer([]) if self.cold is None else self.cold.fused_optimizer

    def set_learning_rate(self, learning_rate: float) -> None:
        """Set the learning rate of all rows from the next step on.

        Raises:
            PlanError: the rate is not a finite number of at least 0.
        """
        if not isinstance(learning_rate, Real) or not 0 <= learning_rate < math.inf:  # or NaN
            raise PlanError(f"learning_rate {learning_rate!r} must be a finite number of at least 0")
        for optimizer in (self.fused_optimizer, *(each for own in self.tiers for each in own.optimizers)):
            for group in optimizer.param_groups:
                group["lr"] = learning_rate
        self.fused_optimizer.step()  # TorchRec's kernels take over the rate; the weights stay as they are

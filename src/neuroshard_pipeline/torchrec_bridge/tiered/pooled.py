"""A sharded `EmbeddingBagCollection` whose tables have tiers: the outputs of the tiers are added.

Hot rows are on every rank, host rows on every host, and cold rows are sharded by TorchRec. Host rows are exchanged as
they are and pooled by the rank that asked for them.

Shapes: F features of the tables of one width D (a feature that looks up several tables counts once per table), B
samples of this rank, N ids of these features, P of which look up hot or host rows.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torchrec.distributed.types import Awaitable, LazyAwaitable
from torchrec.modules.embedding_modules import EmbeddingBagCollection
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor, KeyedTensor

from neuroshard_pipeline.torchrec_bridge.tiered.base import LookedUp, TieredContext, TieredIds, TieredModule
from neuroshard_pipeline.torchrec_bridge.tiered.index import TierRows
from neuroshard_pipeline.torchrec_bridge.tiered.popular import PopularTiers


@dataclass(frozen=True)
class PooledFeature:
    """A feature and a table that it looks up.

    Attributes:
        name: name of the feature.
        output: name of its output.
        width: place of the table's width among all widths.
        table: place of the table among the tables of its width.
        is_mean: whether a mean is computed as a sum in which every id weighs 1 / (number of ids in its bag).
        cold_feature: name of the feature in the module of cold rows, or None if the table has no cold rows.
        is_popular: whether the table has hot or host rows.
    """

    name: str
    output: str
    width: int
    table: int
    is_mean: bool
    cold_feature: str | None
    is_popular: bool


class TieredEmbeddingBagCollection(TieredModule):
    """Returns what the unsharded `EmbeddingBagCollection` returns. `build.tiered_embeddings` makes and describes it.

    Args:
        tiers: hot and host rows of the tables of every width.
        cold: TorchRec's sharded module of the cold rows, or None if there are none.
        features: the features, sorted by width; features of one width are in the order of their tables.
        outputs: names of the outputs in their order.
        is_weighted: whether ids have weights.
        weighs_cold: whether `cold` takes weights of ids.
    """

    def __init__(
        self,
        tiers: Sequence[PopularTiers],
        cold: Any,
        features: Sequence[PooledFeature],
        outputs: Sequence[str],
        *,
        is_weighted: bool,
        weighs_cold: bool,
    ) -> None:
        super().__init__(tiers, cold, [feature.name for feature in features])
        self._of_width = [[each for each in features if each.width == width] for width in range(len(tiers))]
        self._outputs, self._is_weighted, self._weighs_cold = list(outputs), is_weighted, weighs_cold
        self._widths = {each.output: tiers[each.width].embedding_dim for each in features}
        device = tiers[0].device
        self._tables = [torch.tensor([each.table for each in own], device=device) for own in self._of_width]
        self._means = [torch.tensor([each.is_mean for each in own], device=device) for own in self._of_width]

    def input_dist(
        self, ctx: TieredContext, features: KeyedJaggedTensor, *_: Any, **__: Any
    ) -> Awaitable[Awaitable[TieredIds]]:
        """Split the ids by tiers and start to exchange host ids and cold ids."""
        with torch.no_grad():
            ctx.features = features = self.in_order(features)
            cold = [
                self._split(ctx, width, part)
                for width, part in enumerate(features.split([len(own) for own in self._of_width]))
            ]
            return self.started(ctx, None if self.cold is None else _joined(cold))

    def output_dist(self, ctx: TieredContext, output: LookedUp) -> LazyAwaitable[KeyedTensor]:
        """Start to exchange sums of cold rows, and exchange host rows; the awaitable looks up hot rows and adds all."""
        return _Pooled(self, ctx, *self.exchanged(ctx, output))

    def _split(self, ctx: TieredContext, width: int, ids: KeyedJaggedTensor) -> KeyedJaggedTensor | None:
        """Split the ids of the features of one width; returns the ids of cold rows, or None without cold rows."""
        index = self.tiers[width].index
        lengths = ids.lengths().long()
        bag = torch.arange(len(lengths), device=lengths.device).repeat_interleave(lengths)  # (N,)
        table = self._tables[width][bag // max(ids.stride(), 1)]
        split = index.split(index.keys_of(ids.values().long(), table), table)
        weights = ids.weights() if self._is_weighted else None
        if self._means[width].any():
            means = self._means[width].repeat_interleave(ids.stride())
            weights = torch.where(means, 1.0 / lengths.clamp(min=1), 1.0)[bag]
        ctx.splits.append(split)
        ctx.pooling.append((bag, weights))
        return self._cold_ids(width, split, (bag, weights), ids)

    def _cold_ids(
        self, width: int, split: TierRows, pooling: tuple[torch.Tensor, torch.Tensor | None], ids: KeyedJaggedTensor
    ) -> KeyedJaggedTensor | None:
        own, (bag, weights), lengths = self._of_width[width], pooling, ids.lengths()
        names = [each.cold_feature for each in own if each.cold_feature is not None]
        if not names:
            return None
        has_cold = [at for at, each in enumerate(own) if each.cold_feature is not None]
        counts = bag[split.cold_at].bincount(minlength=len(lengths)).view(len(own), -1)[has_cold]
        cold_weights = None
        if self._weighs_cold:
            ones = torch.ones(len(split.cold), device=split.cold.device)
            cold_weights = ones if weights is None else weights[split.cold_at]
        return KeyedJaggedTensor(
            names, split.cold, cold_weights, lengths=counts.flatten().to(lengths.dtype), stride=ids.stride()
        )

    def _popular(self, ctx: TieredContext, width: int, host: torch.Tensor) -> torch.Tensor:
        """Sums (F, B, D) of the hot and host rows of the features of one width."""
        split, request, tiers = ctx.splits[width], ctx.requests[width], self.tiers[width]
        assert ctx.features is not None
        bag, weights = ctx.pooling[width]
        rows = torch.cat([tiers.hot_rows(split.hot), host])  # (P, D)
        at = torch.cat([split.hot_at, _asked_at(split, request)])
        if weights is not None:
            rows = rows * weights[at, None]
        shape = len(self._of_width[width]), ctx.features.stride(), tiers.embedding_dim
        return rows.new_zeros(shape[0] * shape[1], shape[2]).index_add(0, bag[at], rows).view(shape)

    def added(self, ctx: TieredContext, cold: Any, host: Sequence[torch.Tensor]) -> KeyedTensor:
        """The sums over all tiers, by the names of the outputs; waits for the sums of cold rows last."""
        found: dict[str, torch.Tensor] = {}
        popular = [self._popular(ctx, width, rows) for width, rows in enumerate(host)]
        sums = {} if cold is None else cold.wait().to_dict()
        for own, of_width in zip(self._of_width, popular, strict=True):
            for at, each in enumerate(own):
                parts = [of_width[at]] if each.is_popular else []
                parts += [sums[each.cold_feature]] if each.cold_feature is not None else []
                found[each.output] = parts[0] if len(parts) == 1 else parts[0] + parts[1]
        values = torch.cat([found[name] for name in self._outputs], dim=1)
        return KeyedTensor(self._outputs, [self._widths[name] for name in self._outputs], values)

    @property
    def unsharded_module_type(self) -> type[EmbeddingBagCollection]:
        """The type of the module that this one replaces."""
        return EmbeddingBagCollection


class _Pooled(LazyAwaitable[KeyedTensor]):
    def __init__(
        self, module: TieredEmbeddingBagCollection, context: TieredContext, cold: Any, host: list[torch.Tensor]
    ) -> None:
        super().__init__()
        self._parts = module, context, cold, host

    def _wait_impl(self) -> KeyedTensor:
        module, context, cold, host = self._parts
        return module.added(context, cold, host)


def _asked_at(split: TierRows, request: Any) -> torch.Tensor:
    """Positions of host ids in the order in which their rows arrive."""
    return split.host_at if request is None else split.host_at[request.order]


def _joined(of_width: Sequence[KeyedJaggedTensor | None]) -> KeyedJaggedTensor:
    """The features of the cold rows of all widths."""
    parts = [part for part in of_width if part is not None]
    weights = None if parts[0].weights_or_none() is None else torch.cat([part.weights() for part in parts])
    return KeyedJaggedTensor(
        [name for part in parts for name in part.keys()],  # noqa: SIM118
        torch.cat([part.values() for part in parts]),
        weights,
        lengths=torch.cat([part.lengths() for part in parts]),
    )

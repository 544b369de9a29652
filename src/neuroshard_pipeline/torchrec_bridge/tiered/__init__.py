"""Embedding modules for TorchRec whose tables are cut by rows into tiers, after FlexShard (Sethi et al. 2023).

A few rows of a table get most of its lookups. The hottest rows are on every rank, further popular rows are once on
every host, and of all other rows, the cold ones, there is a single copy. A lookup of a hot row needs no network. A
lookup of a host row needs only the links inside the host. The modules have run with gloo on CPUs only.

| module | holds |
| --- | --- |
| `build` | `tiered_embeddings`: makes a module with tiers from an unsharded one |
| `from_plan` | `put_tiers`: puts modules with tiers into a model as a plan says |
| `sequence` | the module that replaces an `EmbeddingCollection` |
| `state` | weights under the names and in the row order of the unsharded tables |
| `optimizer_state` | `optimizer_state`, `load_optimizer_state`: the optimizer's state, in the same form |
| `popular` | hot and host rows; `TierOptions`: deduplication of ids, number format between ranks, device |
| `replicas` | weights that several ranks hold, and their update |
| `exchange` | ids and rows among the ranks of a host |
| `index` | which tier has the row of an id, and where |
| `groups` | process groups of a host, and of the ranks with the same place on every host |
"""

from neuroshard_pipeline.torchrec_plan.extra import require_torchrec

require_torchrec()
from neuroshard_pipeline.torchrec_bridge.tiered.build import cold_name, tiered_embeddings  # noqa: E402
from neuroshard_pipeline.torchrec_bridge.tiered.from_plan import put_tiers  # noqa: E402
from neuroshard_pipeline.torchrec_bridge.tiered.groups import RankGroups, rank_groups  # noqa: E402
from neuroshard_pipeline.torchrec_bridge.tiered.optimizer_state import load_optimizer_state, optimizer_state  # noqa: E402
from neuroshard_pipeline.torchrec_bridge.tiered.popular import TierOptions  # noqa: E402

__all__ = [
    "RankGroups",
    "TierOptions",
    "cold_name",
    "load_optimizer_state",
    "optimizer_state",
    "put_tiers",
    "rank_groups",
    "tiered_embeddings",
]

"""Small deterministic cost models for tests, with the interface of the trained models and simpler formulas."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from neuroshard_pipeline.tables.table import Shard


def softplus(x: np.ndarray) -> np.ndarray:
    return np.logaddexp(0.0, x)


class SmallComputeModel:
    """Embeds shards (layers of 128 and 32), and maps their sum to two costs (64 and 2); sizes as in [Zha2023] §3.2."""

    def __init__(self, seed: int, hidden: int = 32):
        rng = np.random.default_rng(seed)
        self.table_in = rng.normal(size=(5, 128)) * 0.5
        self.table_out = rng.normal(size=(128, hidden)) * 0.12
        self.head_in = rng.gamma(1.0, 0.04, size=(hidden, 64))
        self.head_bias = rng.normal(size=64)
        self.head_out = rng.gamma(1.0, 0.02, size=(64, 2))

    def shard_embeddings(self, shards: Sequence[Shard], batch_size: int, optimizer: str = "sgd") -> np.ndarray:  # noqa: ARG002
        rows = []
        for shard in shards:
            table = shard.table
            ids = table.pooling_factor * batch_size
            unique_rows = -table.num_embeddings * np.expm1(-ids / table.num_embeddings)
            rows.append(
                [
                    np.log(table.num_embeddings) / 10 - 1,
                    np.log(shard.embedding_dim) / 2 - 1,
                    np.log(table.pooling_factor + 0.1),
                    np.log(unique_rows + 1) / 5 - 1,
                    1.0,
                ]
            )
        features = np.array(rows).reshape(-1, 5)
        work = np.exp(0.8 * features[:, 1:2] + 0.4 * features[:, 2:3])
        return work * softplus(np.maximum(features @ self.table_in, 0.0) @ self.table_out)

    def costs_from_sums(self, sums: np.ndarray, batch_size: int) -> np.ndarray:  # noqa: ARG002
        return np.maximum(sums @ self.head_in + self.head_bias, 0.0) @ self.head_out + 0.05

    def interval_from_sums(self, sums, batch_size):
        """Intervals are wider, relative to the cost, if the first four numbers hold a large share of the sums."""
        costs = self.costs_from_sums(sums, batch_size).sum(axis=-1)
        width = 0.02 + 0.2 * sums[..., :4].sum(axis=-1) / (sums.sum(axis=-1) + 1.0)
        return np.stack([costs * np.exp(-width), costs * np.exp(width)], axis=-1)


class SmallCommModel:
    """The cost of a rank rises with its own dimension sum, those of all ranks, and its wait for the last rank.

    A single rank pays nothing, as in `CommCostModel`.
    """

    def __init__(self, seed: int):
        rng = np.random.default_rng(seed)
        self.own, self.worst, self.wait = rng.uniform(0.002, 0.01, 3) * (1.0, 1.0, 60.0)

    def forward_ms(self, dim_sums, start_skew_ms, batch_size):  # noqa: ARG002
        skew = np.asarray(start_skew_ms, dtype=np.float64)
        waiting = (skew.max(axis=-1, keepdims=True) - skew) * (1 - self.wait / 2)
        return 1.2 * self._volume_ms(dim_sums) + waiting

    def backward_ms(self, dim_sums, batch_size):  # noqa: ARG002
        largest = np.asarray(dim_sums, dtype=np.float64).max(axis=-1, keepdims=True)
        return self._volume_ms(dim_sums) + 0.3 * self.worst * largest * (np.shape(dim_sums)[-1] > 1)

    def forward_interval_ms(self, dim_sums, start_skew_ms, batch_size):
        return self.forward_ms(dim_sums, start_skew_ms, batch_size)[..., None] * (0.9, 1.2)

    def backward_interval_ms(self, dim_sums, batch_size):
        return self.backward_ms(dim_sums, batch_size)[..., None] * (0.9, 1.1)

    def _volume_ms(self, dim_sums):
        dims = np.asarray(dim_sums, dtype=np.float64)
        cost_ms = self.own * dims + self.worst * np.sqrt((dims**2).mean(axis=-1, keepdims=True)) + 0.1
        return cost_ms * (dims.shape[-1] > 1)


@dataclass(frozen=True)
class SmallModels:
    compute: SmallComputeModel
    comm: SmallCommModel

    step = None

    def caveats(self, task):  # noqa: ARG002
        return ()


def small_models(seed: int = 0) -> SmallModels:
    return SmallModels(SmallComputeModel(seed), SmallCommModel(seed))

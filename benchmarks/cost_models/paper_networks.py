"""The networks of [Zha2023] §3.2 (arXiv 2305.01868), which the benchmarks compare with the product's networks.

Their accuracy depends on the samples. On this project's mix of tables, batch sizes, data types and optimizers, which is
far wider than the paper's, the compute network has a mean error of 38 %. Trained on the paper's own kind of samples
(batch size 512, fp32, SGD, generated tables), its mean error on such samples is 9 %. A search with the latter
network found plans whose measured compute cost was 1.5 % higher than that of the product's plans (15 tasks, noise 6 %),
and whose predicted total cost was 3 % higher.

`PaperComputeModel` and `PaperCommModel` have the methods that a search needs. The paper has no prediction intervals, so
both bounds of an interval are the prediction. `dense` accepts NumPy arrays and torch tensors.

Shapes: N samples, S shards, W ranks of one collective, R ranks of all collectives, E ensemble members, F features.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor

from neuroshard_pipeline.cost_models.comm_features import COMM_DIRECTIONS
from neuroshard_pipeline.cost_models.compute_features import segment_sums
from neuroshard_pipeline.cost_models.fitting import FeatureRows, Fit, Loss, fit
from neuroshard_pipeline.cost_models.measured import CommData, ComputeData, Split
from neuroshard_pipeline.cost_models.network import Normalisation
from neuroshard_pipeline.cost_models.params import FitParams
from neuroshard_pipeline.errors import CostModelError
from neuroshard_pipeline.tables.profile import with_profile
from neuroshard_pipeline.tables.samples import CommSample, ComputeSample
from neuroshard_pipeline.tables.table import BYTES_PER_ELEMENT, Shard

#: Schedule of the paper's networks, chosen on validation samples like the product's schedule. When it was chosen,
#: on this project's mix of compute samples, learning rate 0.005 with 200 epochs (30 s, best epoch 146) had a MAPE of
#: 46 %; 0.002 with 400 epochs (115 s, best epoch 201) 53 %, with 200 epochs 58 %, with 100 epochs 74 %; 0.0005 with 200
#: epochs 79 %.
PAPER_SCHEDULE = {"members": 1, "learning_rate": 0.005, "weight_decay": 0.0, "epochs": 200}

#: Outputs of the layers of the per-table network, and of the head on summed embeddings. The paper's head has one
#: output, the sum of forward and backward. Two outputs take no more time, and benchmarks judge the error of their sum.
_TABLE_WIDTHS, _HEAD_WIDTHS = (128, 32), (64, 2)

_COMM_WIDTHS = (128, 64, 32, 16)


@dataclass(frozen=True)
class Scaling:
    """Mean and standard deviation of the training costs, (outputs,) each, in ms."""

    mean: np.ndarray
    deviation: np.ndarray

    @classmethod
    def of(cls, costs: np.ndarray) -> Scaling:
        """The scaling of costs (N, outputs)."""
        return cls(costs.mean(axis=0), np.maximum(costs.std(axis=0), 1e-9))


@dataclass(frozen=True)
class PaperComputeModel:
    """A network 128-32 for each shard, whose outputs are summed over the shards of a rank, and a head 64-2 on the sums.

    Attributes:
        weights: weights of all layers; the first axis is the ensemble member.
        normalisation: scaling of the features.
        scaling: scaling of the costs.
    """

    weights: dict[str, np.ndarray]
    normalisation: Normalisation
    scaling: Scaling

    def shard_embeddings(self, shards: Sequence[Shard], batch_size: int, optimizer: str = "sgd") -> np.ndarray:  # noqa: ARG002
        """Embeddings (S, E * 32); the paper's features do not include the optimizer."""
        features = self.normalisation.context(raw_features(shards, batch_size))
        embeddings = dense(self.weights, "table", features, len(_TABLE_WIDTHS)).clip(min=0)  # (E, S, 32)
        return np.moveaxis(embeddings, 0, 1).reshape(len(shards), -1)

    def costs_from_sums(self, sums: np.ndarray, batch_size: int) -> np.ndarray:  # noqa: ARG002
        """Forward and backward ms (..., 2) of summed embeddings (..., E * 32)."""
        by_member = np.moveaxis(sums.reshape(-1, sums.shape[-1] // _TABLE_WIDTHS[-1], _TABLE_WIDTHS[-1]), 1, 0)
        costs = dense(self.weights, "head", by_member, len(_HEAD_WIDTHS)).mean(axis=0)
        return np.maximum(costs * self.scaling.deviation + self.scaling.mean, 0.0).reshape(*sums.shape[:-1], 2)

    def interval_from_sums(self, sums: np.ndarray, batch_size: int) -> np.ndarray:
        """Forward + backward ms as both bounds (..., 2), because the network has no intervals."""
        total = self.costs_from_sums(sums, batch_size).sum(axis=-1)
        return np.stack([total, total], axis=-1)

    def predict(self, samples: Sequence[ComputeSample]) -> np.ndarray:
        """Forward and backward ms of samples: (N, 2)."""
        embeddings = [self.shard_embeddings(sample.shards, sample.batch_size) for sample in samples]
        sums = segment_sums(np.concatenate(embeddings), [len(sample.shards) for sample in samples])
        return self.costs_from_sums(sums, samples[0].batch_size)


def fit_paper_compute(data: ComputeData, split: Split, params: FitParams) -> PaperComputeModel:
    """Fit the paper's compute network; its loss is the squared error of standardised costs."""
    generator = torch.Generator().manual_seed(params.seed)
    raw = np.concatenate([raw_features(sample.shards, sample.batch_size) for sample in data.samples])
    counts = np.array([len(sample.shards) for sample in data.samples])
    rows = FeatureRows(raw, raw, counts, split)
    scaling = Scaling.of(data.costs_ms[split.training])
    target = torch.tensor((data.costs_ms - scaling.mean) / scaling.deviation, dtype=torch.float32)
    sizes = {"table": (raw.shape[1], *_TABLE_WIDTHS), "head": (_TABLE_WIDTHS[-1], *_HEAD_WIDTHS)}

    def loss(weights: dict[str, Tensor], samples: np.ndarray) -> Tensor:
        _, _, features = rows.of(samples)
        embeddings = dense(weights, "table", features, len(_TABLE_WIDTHS)).clip(min=0)  # (E, S, 32)
        owner = torch.from_numpy(np.repeat(np.arange(len(samples)), counts[samples]))
        sums = torch.zeros(len(embeddings), len(samples), embeddings.shape[2]).index_add(1, owner, embeddings)
        return ((dense(weights, "head", sums, len(_HEAD_WIDTHS)) - target[samples]) ** 2).mean(dim=(1, 2))

    return PaperComputeModel(fit_dense(sizes, loss, split, params, generator), rows.normalisation, scaling)


def raw_features(shards: Sequence[Shard], batch_size: int) -> np.ndarray:
    """The paper's features (S, 22), without logarithms: dimension, rows, pooling factor, size, distribution of ids."""
    rows = []
    for shard in shards:
        table = shard.table if shard.table.has_profile else with_profile(shard.table, batch_size)
        size = table.num_embeddings * shard.embedding_dim * BYTES_PER_ELEMENT[table.data_type]
        numbers = shard.embedding_dim, table.num_embeddings, table.pooling_factor, size, table.unique_rows
        rows.append([*numbers, *table.reuse])
    return np.array(rows, dtype=np.float64)


@dataclass(frozen=True)
class PaperCommModel:
    """Networks 128-64-32-16 for one world size and one batch size.

    Attributes:
        world_size: number of ranks.
        directions: per direction of `COMM_DIRECTIONS`, weights, scaling of the features and scaling of the costs.
    """

    world_size: int
    directions: dict[str, tuple[dict[str, np.ndarray], Normalisation, Scaling]]

    def forward_ms(self, dim_sums: Any, start_skew_ms: Any, batch_size: int) -> np.ndarray:  # noqa: ARG002
        """Forward ms of every rank: (..., W)."""
        return self._costs("forward", np.asarray(dim_sums), np.asarray(start_skew_ms))

    def backward_ms(self, dim_sums: Any, batch_size: int) -> np.ndarray:  # noqa: ARG002
        """Backward ms of every rank: (..., W)."""
        return self._costs("backward", np.asarray(dim_sums), np.zeros_like(dim_sums))

    def forward_interval_ms(self, dim_sums: Any, start_skew_ms: Any, batch_size: int) -> np.ndarray:
        """`forward_ms` as both bounds (..., W, 2), because the network has no intervals."""
        return np.stack([self.forward_ms(dim_sums, start_skew_ms, batch_size)] * 2, axis=-1)

    def backward_interval_ms(self, dim_sums: Any, batch_size: int) -> np.ndarray:
        """`backward_ms` as both bounds (..., W, 2), because the network has no intervals."""
        return np.stack([self.backward_ms(dim_sums, batch_size)] * 2, axis=-1)

    def predict(self, samples: Sequence[CommSample]) -> np.ndarray:
        """Forward and backward ms of all ranks of all samples: (R, 2)."""
        forward = [self.forward_ms(s.dim_sums, s.start_skew_ms, s.batch_size) for s in samples]
        backward = [self.backward_ms(s.dim_sums, s.batch_size) for s in samples]
        return np.stack([np.concatenate(forward), np.concatenate(backward)], axis=-1)

    def _costs(self, direction: str, dims: np.ndarray, skew: np.ndarray) -> np.ndarray:
        if dims.shape[-1] != self.world_size:
            raise CostModelError(
                f"the paper's communication network was trained for {self.world_size} ranks and cannot predict for "
                f"{dims.shape[-1]}; train one for that world size"
            )
        weights, normalisation, scaling = self.directions[direction]
        features = normalisation.context(np.concatenate([dims, skew], axis=-1, dtype=np.float64))
        costs = dense(weights, "comm", features.reshape(-1, 2 * self.world_size), len(_COMM_WIDTHS) + 1).mean(axis=0)
        return np.maximum(costs * scaling.deviation + scaling.mean, 0.0).reshape(dims.shape)


def fit_paper_comm(data: CommData, split: Split, params: FitParams) -> PaperCommModel:
    """Fit the paper's communication networks to samples of one world size; the batch size is not a feature."""
    (world_size,) = {sample.world_size for sample in data.samples}
    directions = {}
    for column, direction in enumerate(COMM_DIRECTIONS):
        generator = torch.Generator().manual_seed(params.seed)
        skew = np.array([sample.start_skew_ms for sample in data.samples]) * (direction == "forward")
        raw = np.concatenate([np.array([sample.dim_sums for sample in data.samples]), skew], axis=-1)
        normalisation = Normalisation.fit(raw[split.training], raw[split.training])
        features = torch.tensor(normalisation.context(raw), dtype=torch.float32)
        costs = np.stack(list(data.costs))[:, :, column]  # (N, W)
        scaling = Scaling.of(costs[split.training])
        target = torch.tensor((costs - scaling.mean) / scaling.deviation, dtype=torch.float32)

        def loss(weights: dict[str, Tensor], samples: np.ndarray, x: Tensor = features, y: Tensor = target) -> Tensor:
            return ((dense(weights, "comm", x[samples], len(_COMM_WIDTHS) + 1) - y[samples]) ** 2).mean(dim=(1, 2))

        sizes = {"comm": (2 * world_size, *_COMM_WIDTHS, world_size)}
        directions[direction] = (fit_dense(sizes, loss, split, params, generator), normalisation, scaling)
    return PaperCommModel(world_size, directions)


def fit_dense(
    sizes: dict[str, tuple[int, ...]], loss: Loss, split: Split, params: FitParams, generator: torch.Generator
) -> Fit:
    """Fit ReLU networks from He initialisation; `sizes` maps their names to the widths of all layers."""
    weights = {}
    for name, widths in sizes.items():
        for layer, (inputs, outputs) in enumerate(pairwise(widths)):
            noise = torch.randn(params.members, inputs, outputs, generator=generator)
            weights[f"{name}.{layer}.weight"] = noise * math.sqrt(2 / inputs)
            weights[f"{name}.{layer}.bias"] = torch.zeros(params.members, 1, outputs)
    return fit(weights, loss, split, params, generator, "paper's network")


def dense(weights: dict[str, Any], name: str, features: Any, layers: int) -> Any:
    """A ReLU network without activation after its last layer: features (..., F) to (E, ..., outputs)."""
    for layer in range(layers):
        features = features.clip(min=0) if layer else features
        features = features @ weights[f"{name}.{layer}.weight"] + weights[f"{name}.{layer}.bias"]
    return features

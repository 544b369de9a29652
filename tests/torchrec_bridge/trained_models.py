"""Two models with all kinds of embedding collections, and random batches for them."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn
from torchrec import (
    EmbeddingBagCollection,
    EmbeddingBagConfig,
    EmbeddingCollection,
    EmbeddingConfig,
    JaggedTensor,
    KeyedJaggedTensor,
)
from torchrec.models.dlrm import DLRM_DCN
from torchrec.modules.embedding_configs import PoolingType
from torchrec.optim.apply_optimizer_in_backward import apply_optimizer_in_backward

from neuroshard_pipeline.torchrec_plan.modules import embedding_modules

DENSE_FEATURES = 13
LOCAL_BATCH = 16
LEARNING_RATE = 0.1
#: Rows of 26 tables. Large and small tables alternate much as in MLPerf's DLRM-v2, whose sizes differ far more.
ROWS = [400, 390, 170, 70, 200, 3, 71, 15, 63, 400, 350, 230, 10, 22, 119, 4, 10, 14, 400, 400, 400, 380, 108, 36, 5, 4]


class Dlrm(nn.Module):
    """TorchRec's DLRM-v2 with 26 tables of 32 columns."""

    def __init__(self) -> None:
        super().__init__()
        self.model = DLRM_DCN(
            embedding_bag_collection=_collection("cat", [32] * len(ROWS), ROWS),
            dense_in_features=DENSE_FEATURES,
            dense_arch_layer_sizes=[64, 32],
            over_arch_layer_sizes=[64, 32, 1],
            dcn_num_layers=2,
            dcn_low_rank_dim=16,
        )

    def forward(self, dense: torch.Tensor, ids: KeyedJaggedTensor) -> torch.Tensor:
        return self.model(dense, ids).squeeze(-1)


class SeveralCollections(nn.Module):
    """Four collections: one with widths of 4 to 64, a weighted one, a mean-pooled one, and one of sequences.

    Some tables have several features.
    """

    def __init__(self) -> None:
        super().__init__()
        self.plain = _collection("plain", [4, 12, 64, 48, 16], [50, 300, 200, 100, 81], [1, 2, 1, 1, 3])
        self.tower = nn.ModuleDict({"weighted": _collection("weighted", [16, 32, 8], [90, 60, 500], is_weighted=True)})
        self.mean = _collection("mean", [24, 16], [40, 333], [1, 2], pooling=PoolingType.MEAN)
        self.sequence = _sequences("sequence", [70, 45, 130], [1, 1, 2])
        widths = sum(config.embedding_dim * config.num_features() for config in configs_of(self))
        self.over = nn.Sequential(nn.Linear(DENSE_FEATURES + widths, 32), nn.ReLU(), nn.Linear(32, 1))

    def forward(self, dense: torch.Tensor, *ids: KeyedJaggedTensor) -> torch.Tensor:
        parts = []
        for collection, part in zip([self.plain, self.tower["weighted"], self.mean], ids, strict=False):
            outputs = collection(part)  # a sharded collection orders its outputs by rank
            parts += [outputs[feature] for feature in part.keys()]  # noqa: SIM118
        sequences = self.sequence(ids[-1])
        parts += [_summed(sequences[feature]) for feature in ids[-1].keys()]  # noqa: SIM118
        return self.over(torch.cat([dense, *parts], dim=1)).squeeze(-1)


def _summed(sequence: JaggedTensor) -> torch.Tensor:
    """For every sample, the sum of a nonlinear function of its rows."""
    return torch.segment_reduce(sequence.values().tanh(), "sum", lengths=sequence.lengths().long())


def _collection(
    name: str,
    dims: list[int],
    rows: list[int],
    features: list[int] | None = None,
    is_weighted: bool = False,
    pooling: PoolingType = PoolingType.SUM,
) -> EmbeddingBagCollection:
    features = features or [1] * len(dims)
    tables = [
        EmbeddingBagConfig(**_config(name, i, dim, num, count), pooling=pooling)
        for i, (dim, num, count) in enumerate(zip(dims, rows, features, strict=True))
    ]
    return EmbeddingBagCollection(tables=tables, is_weighted=is_weighted, device=torch.device("cpu"))


def _sequences(name: str, rows: list[int], features: list[int]) -> EmbeddingCollection:
    configs = [_config(name, i, 24, num, count) for i, (num, count) in enumerate(zip(rows, features, strict=True))]
    return EmbeddingCollection(tables=[EmbeddingConfig(**config) for config in configs], device=torch.device("cpu"))


def _config(name: str, number: int, dim: int, rows: int, features: int) -> dict:
    names = [f"{name}_{number}"] + [f"{name}_{number}_{at}" for at in range(1, features)]
    return {
        "name": f"t_{name}_{number}",
        "embedding_dim": dim,
        "num_embeddings": rows,
        "feature_names": names,
        # For most tables, this range is wider than the default ±1/sqrt(rows), so that they influence the loss at once.
        "init_fn": lambda weight: torch.nn.init.uniform_(weight, -0.5, 0.5),
    }


MODELS: dict[str, type[nn.Module]] = {"dlrm": Dlrm, "several_collections": SeveralCollections}


def configs_of(model: nn.Module) -> list:
    """TorchRec's configurations of all tables of a model."""
    return [config for collection in embedding_modules(model).values() for config in _configs(collection)]


def _configs(collection: nn.Module) -> list:
    is_pooled = isinstance(collection, EmbeddingBagCollection)
    return collection.embedding_bag_configs() if is_pooled else collection.embedding_configs()


def built(kind: str) -> nn.Module:
    """A model that is the same on every rank; SGD updates its tables in their backward pass."""
    model = initial(kind)
    for collection in embedding_modules(model).values():
        apply_optimizer_in_backward(torch.optim.SGD, collection.parameters(), {"lr": LEARNING_RATE})
    return model


def initial(kind: str) -> nn.Module:
    torch.manual_seed(0)
    return MODELS[kind]()


class Batches:
    """Random batches for a model; a sample is the same in a part of a batch as in the whole batch."""

    def __init__(self, model: nn.Module, world_size: int):
        self.collections = [
            (_configs(collection), isinstance(collection, EmbeddingBagCollection) and collection.is_weighted())
            for collection in embedding_modules(model).values()
        ]
        self.samples = LOCAL_BATCH * world_size

    def draw(self, step: int, part: slice) -> tuple[torch.Tensor, list[KeyedJaggedTensor], torch.Tensor]:
        """Dense features, ids of every collection, and labels of the samples in `part`."""
        rng = np.random.default_rng(step)
        dense = rng.normal(size=(self.samples, DENSE_FEATURES)).astype(np.float32)
        labels = rng.integers(0, 2, self.samples).astype(np.float32)
        ids = [self._ids(rng, configs, weighted, part) for configs, weighted in self.collections]
        return torch.from_numpy(dense[part]), ids, torch.from_numpy(labels[part])

    def _ids(self, rng: np.random.Generator, configs: list, weighted: bool, part: slice) -> KeyedJaggedTensor:
        values, lengths, weights, keys = [], [], [], []
        for name, rows in ((name, config.num_embeddings) for config in configs for name in config.feature_names):
            count = rng.integers(0, 6, self.samples)
            ends = np.cumsum(count)
            drawn = rng.integers(0, rows, ends[-1])
            importance = rng.uniform(0.5, 2.0, ends[-1]).astype(np.float32)
            taken = slice(ends[part.start] - count[part.start], ends[part.stop - 1])
            keys.append(name)
            values.append(drawn[taken])
            weights.append(importance[taken])
            lengths.append(count[part])
        return KeyedJaggedTensor(
            keys,
            torch.from_numpy(np.concatenate(values)),
            torch.from_numpy(np.concatenate(weights)) if weighted else None,
            lengths=torch.from_numpy(np.concatenate(lengths)),
        )

"""Does DHEN learn what a DLRM of the same size does not? Normalised entropy on clicks with known interactions.

A sample has 8 features with 100 categories each. Every category has a hidden vector. The logit of a click is the sum,
over all pairs (order 2) or all triples (order 3) of features, of the sum of the product of their vectors, scaled to a
standard deviation of 2. The normalised entropy is the log loss on new samples, divided by that of the click rate: 1
knows nothing, and the smallest value that any model can reach is that of the true logits.

Both models have embeddings of 16 numbers and nearly as many dense parameters. Each trains with Adam for one pass at two
learning rates, and the better one on a validation set counts. It takes about 6 minutes on one core:

    python benchmarks/train/bench_learning.py [--samples 200000] [--seeds 3]
"""

import argparse
from collections.abc import Iterator
from itertools import combinations

import numpy as np
import pandas as pd
import torch
from torch.nn.functional import binary_cross_entropy_with_logits
from torchrec import EmbeddingBagCollection, KeyedJaggedTensor
from torchrec.datasets.utils import Batch

from neuroshard_pipeline.tables.table import Table
from neuroshard_pipeline.torchrec_bridge.train_check.batches import DENSE_FEATURES
from neuroshard_pipeline.torchrec_bridge.train_check.model import RankingModel, initial_columns
from neuroshard_pipeline.torchrec_bridge.train_check.params import DhenParams, ModelName, TrainingParams

FEATURES, CATEGORIES, WIDTH, HIDDEN, BATCH = 8, 100, 16, 3, 512
HELD_OUT = 50_000
RATES = (1e-3, 3e-3)
TABLES = [Table(f"t{at}", CATEGORIES, WIDTH, 1.0) for at in range(FEATURES)]
#: Sizes with about equal numbers of dense parameters.
SIZES: dict[ModelName, dict] = {
    "dlrm": {"cross_layers": 3, "cross_rank": 32, "over_layers": (128, 64)},
    "dhen": {"cross_layers": 1, "cross_rank": 16, "over_layers": (96,)},
}


def params_of(name: ModelName, seed: int) -> TrainingParams:
    """Sizes of the model; parameters of timed steps do not matter here."""
    return TrainingParams(
        **SIZES[name],
        models=[name],
        dense=["ddp"],
        trainer="plain",
        networks=[],
        dense_layers=(16,),
        dhen=DhenParams(layers=3, width=WIDTH, outputs=3, heads=2),
        backend="gloo",
        learning_rate=1.0,
        rounds=1,
        warmup_steps=0,
        steps_per_round=1,
        most_plans_held=1,
        quantile=0.5,
        loss_tolerance=1.0,
        threads=1,
        timeout_s=1,
        seed=seed,
    )


def clicks(order: int, samples: int, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Categories (N, 8), true logits (N,) and labels (N,)."""
    rng = np.random.default_rng([order, seed])
    vectors = rng.normal(size=(FEATURES, CATEGORIES, HIDDEN))
    categories = rng.integers(CATEGORIES, size=(samples, FEATURES))
    of_samples = vectors[np.arange(FEATURES), categories]  # (N, 8, 3)
    logits = sum(
        of_samples[:, list(chosen)].prod(axis=1).sum(axis=1) for chosen in combinations(range(FEATURES), order)
    )
    logits = 2.0 * logits / logits.std()
    return categories, logits, (rng.random(samples) < 1 / (1 + np.exp(-logits))).astype(np.float32)


def batches(categories: np.ndarray, labels: np.ndarray) -> Iterator[Batch]:
    """Batches in order; the dense features are 0."""
    names, ones = [table.name for table in TABLES], torch.ones(FEATURES * BATCH, dtype=torch.int32)
    for start in range(0, len(labels) - BATCH + 1, BATCH):
        own = torch.from_numpy(categories[start : start + BATCH].T.copy().reshape(-1))
        ids = KeyedJaggedTensor(names, own, lengths=ones)
        yield Batch(torch.zeros(BATCH, DENSE_FEATURES), ids, torch.from_numpy(labels[start : start + BATCH]))


def built(name: ModelName, seed: int) -> RankingModel:
    """The model with its tables on the CPU."""
    model = RankingModel(name, TABLES, params_of(name, seed))
    configs = model.embedding_bag_collection.embedding_bag_configs()
    model.embedding_bag_collection = EmbeddingBagCollection(tables=configs, device=torch.device("cpu"))
    for table in TABLES:
        weight = model.embedding_bag_collection.embedding_bags[table.name].weight
        weight.data.copy_(torch.from_numpy(initial_columns(table, 0, WIDTH, seed)))
    return model


def entropy(logits: np.ndarray, labels: np.ndarray) -> float:
    """Normalised entropy."""
    rate = labels.mean()
    loss = binary_cross_entropy_with_logits(torch.from_numpy(logits), torch.from_numpy(labels).double()).item()
    return float(loss / -(rate * np.log(rate) + (1 - rate) * np.log(1 - rate)))


def learned(name: ModelName, order: int, samples: int, seed: int) -> dict[str, object]:
    """Normalised entropy of a model on new samples, and of the true logits."""
    categories, logits, labels = clicks(order, samples + 2 * HELD_OUT, seed)
    found = []
    for rate in RATES:
        model = built(name, seed)
        optimizer = torch.optim.Adam(model.parameters(), lr=rate)
        for batch in batches(categories[:samples], labels[:samples]):
            loss, _ = model(batch)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        with torch.no_grad():
            given = [model(batch)[1][1].double().numpy() for batch in batches(categories[samples:], labels[samples:])]
        scores, truth = np.concatenate(given), labels[samples:]
        found.append(
            [entropy(scores[part], truth[: len(scores)][part]) for part in np.split(np.arange(len(scores)), 2)]
        )
    best = min(found)  # by the validation set, the first half
    size = sum(each.numel() for each in model.dense.parameters())
    true = entropy(logits[samples + HELD_OUT :], labels[samples + HELD_OUT :])
    return {"order": order, "model": name, "seed": seed, "dense": size, "NE": best[1], "NE of the true logits": true}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=200_000)
    parser.add_argument("--seeds", type=int, default=3)
    given = parser.parse_args()
    rows = []
    for seed in range(given.seeds):
        for order in (2, 3):
            rows += [learned(name, order, given.samples, seed) for name in SIZES]
            print(pd.DataFrame(rows[-2:]).round(4).to_string(index=False, header=len(rows) == 2), flush=True)
    means = pd.DataFrame(rows).groupby(["order", "model"])[["dense", "NE", "NE of the true logits"]]
    print(f"\nmeans over seeds\n{means.mean().round(4)}\n\nstandard deviations\n{means.std().round(4)}")

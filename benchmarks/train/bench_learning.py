"""Does DHEN learn what a DLRM of the same size does not? Normalised entropy on clicks with known interactions.

A sample has 8 features with 20 categories each. Every category has a hidden vector of 3 numbers. The logit of a click
is the sum, over all pairs (order 2) or all triples (order 3) of features, of the sum of the product of their vectors,
scaled to a standard deviation of 2. The normalised entropy is the log loss on new samples, divided by that of the click
rate: 1 knows nothing, and the smallest value that any model can reach is that of the true logits.

Both models have embeddings of 16 numbers and nearly as many dense parameters. Each trains with Adam at two learning
rates, at most `--passes` times over the samples, and stops after two passes that do not help on a validation set. The
rate and the pass that are best there count. A seed takes about 5 minutes on one core:

    python benchmarks/train/bench_learning.py [--samples 100000] [--passes 8] [--seeds 0 1 2]
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

FEATURES, CATEGORIES, WIDTH, HIDDEN, BATCH = 8, 20, 16, 3, 512
HELD_OUT = 20_480
RATES = (3e-3, 1e-2)
PATIENCE = 2
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
        loss_steps=1,
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


def scores(model: RankingModel, categories: np.ndarray, labels: np.ndarray) -> tuple[float, float]:
    """Normalised entropy on the first half of the held-out samples, for validation, and on the second half."""
    with torch.no_grad():
        logits = np.concatenate([model(batch)[1][1].double().numpy() for batch in batches(categories, labels)])
    return entropy(logits[:HELD_OUT], labels[:HELD_OUT]), entropy(logits[HELD_OUT:], labels[HELD_OUT:])


def trained(
    model: RankingModel, rate: float, passes: int, data: list[np.ndarray]
) -> Iterator[tuple[float, float, int]]:
    """The scores after every pass until they have not improved for some passes, and the number of the pass."""
    categories, labels, *held_out = data
    optimizer, best, best_pass = torch.optim.Adam(model.parameters(), lr=rate), np.inf, 0
    for number in range(1, passes + 1):
        for batch in batches(categories, labels):
            loss, _ = model(batch)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        validation, test = scores(model, *held_out)
        yield validation, test, number
        best, best_pass = (validation, number) if validation < best else (best, best_pass)
        if number - best_pass >= PATIENCE:
            return


def learned(name: ModelName, order: int, samples: int, passes: int, seed: int) -> dict[str, object]:
    """Normalised entropy of a model on new samples, and of the true logits."""
    categories, logits, labels = clicks(order, samples + 2 * HELD_OUT, seed)
    data = [categories[:samples], labels[:samples], categories[samples:], labels[samples:]]
    found = [(*each, rate) for rate in RATES for each in trained(built(name, seed), rate, passes, data)]
    _, test, best_pass, rate = min(found)
    size = sum(each.numel() for each in built(name, seed).dense.parameters())
    true = entropy(logits[samples + HELD_OUT :], labels[samples + HELD_OUT :])
    row = {"order": order, "model": name, "seed": seed, "dense": size, "rate": rate, "pass": best_pass}
    return row | {"NE": test, "NE of the true logits": true}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=100_000)
    parser.add_argument("--passes", type=int, default=8)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    given = parser.parse_args()
    rows = []
    for seed in given.seeds:
        for order in (2, 3):
            rows += [learned(name, order, given.samples, given.passes, seed) for name in SIZES]
            print(pd.DataFrame(rows[-2:]).round(4).to_string(index=False, header=len(rows) == 2), flush=True)
    means = pd.DataFrame(rows).groupby(["order", "model"])[["dense", "NE", "NE of the true logits"]]
    print(f"\nmeans over seeds\n{means.mean().round(4)}\n\nstandard deviations\n{means.std().round(4)}")

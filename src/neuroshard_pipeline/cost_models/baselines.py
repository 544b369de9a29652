"""What a cost model must beat to be worth its code: two scikit-learn models on summed features.

Shapes: N samples, P work terms, F context features, D = 2 directions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.ensemble import GradientBoostingRegressor
from sklearn.linear_model import LinearRegression

from neuroshard_pipeline.cost_models.features import segment_sums, shard_features
from neuroshard_pipeline.errors import CostModelError
from neuroshard_pipeline.tables.samples import ComputeSample

FloatArray = NDArray[np.float64]

BASELINES: tuple[str, ...] = ("gradient_boosting", "non_negative_linear")


def summed_features(samples: Sequence[ComputeSample]) -> tuple[FloatArray, FloatArray]:
    """Summed work with a column of ones for the launch (N, 1 + P), and mean context weighted by shard (N, F)."""
    work, context = [], []
    for sample in samples:
        features = shard_features(sample.shards, sample.batch_size, sample.optimizer)
        work.append(segment_sums(features.work, [len(sample.shards)])[0])
        context.append(features.context.mean(axis=0))
    return np.column_stack([np.ones(len(samples)), np.array(work)]), np.array(context)


def fit_predict_baseline(
    name: str, training: Sequence[ComputeSample], costs: FloatArray, test: Sequence[ComputeSample], seed: int
) -> FloatArray:
    """Fit a baseline on training samples and predict forward and backward ms of test samples.

    `gradient_boosting`: trees on summed work, its logarithms and mean context, fitted to the logarithm of the cost.
    `non_negative_linear`: prices per unit of summed work, at least 0, with the least relative error.

    Args:
        name: one of `BASELINES`.
        training: N samples.
        costs: (N, D) measured ms.
        test: M samples.
        seed: of the trees.

    Returns:
        (M, D) in ms.
    """
    if name not in BASELINES:
        raise CostModelError(f"baseline {name!r} is unknown; use one of {', '.join(BASELINES)}")
    fit_one = _boosted if name == "gradient_boosting" else _linear
    seen, asked = summed_features(training), summed_features(test)
    return np.column_stack([fit_one(seen, costs[:, column], asked, seed) for column in range(costs.shape[1])])


def _boosted(seen: Any, cost: FloatArray, asked: Any, seed: int) -> FloatArray:
    trees = GradientBoostingRegressor(
        n_estimators=400,
        learning_rate=0.05,
        max_depth=4,
        subsample=0.7,
        max_features=0.5,
        loss="huber",
        random_state=seed,
    )
    trees.fit(_tree_inputs(*seen), np.log(cost))
    return np.exp(trees.predict(_tree_inputs(*asked)))


def _tree_inputs(work: FloatArray, context: FloatArray) -> FloatArray:
    return np.column_stack([work, np.log(work + 1e-9), context])


def _linear(seen: Any, cost: FloatArray, asked: Any, seed: int) -> FloatArray:  # noqa: ARG001
    line = LinearRegression(positive=True, fit_intercept=False)
    line.fit(seen[0] / cost[:, None], np.ones(len(cost)))
    return asked[0] @ line.coef_

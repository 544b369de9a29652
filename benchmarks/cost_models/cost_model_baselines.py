"""Two scikit-learn models of the cost of lookups, which our compute cost model must outperform to justify its code.

Shapes: N samples, P work terms, F context features, D = 2 directions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.ensemble import GradientBoostingRegressor
from sklearn.linear_model import LinearRegression

from neuroshard_pipeline.cost_models.compute_features import shard_features
from neuroshard_pipeline.errors import CostModelError
from neuroshard_pipeline.tables.samples import ComputeSample

FloatArray = NDArray[np.float64]

BASELINES: tuple[str, ...] = ("gradient_boosting", "non_negative_linear")
TREES = 400


def summed_features(samples: Sequence[ComputeSample]) -> tuple[FloatArray, FloatArray]:
    """Summed work after a column of ones for the launch (N, 1 + P), and context averaged over shards (N, F)."""
    features = [shard_features(sample.shards, sample.batch_size, sample.optimizer) for sample in samples]
    summed = np.array([work.sum(axis=0) for work, _ in features])
    return np.column_stack([np.ones(len(samples)), summed]), np.array([context.mean(axis=0) for _, context in features])


def fit_predict_baseline(
    name: str, training: Sequence[ComputeSample], costs: FloatArray, test: Sequence[ComputeSample], seed: int
) -> FloatArray:
    """Fit a baseline on training samples and predict forward and backward ms of test samples.

    `gradient_boosting`: trees on summed work, its logarithms and mean context, fitted to the logarithm of the cost.
    `non_negative_linear`: non-negative prices per unit of summed work, with the least squared relative error.

    Args:
        name: one of `BASELINES`.
        training: N samples.
        costs: (N, D) measured ms.
        test: M samples.
        seed: seed of the trees.

    Returns:
        (M, D) in ms.
    """
    if name not in BASELINES:
        raise CostModelError(f"baseline {name!r} is unknown; use one of {', '.join(BASELINES)}")
    fit_one = _boosted if name == "gradient_boosting" else _linear
    known, asked = summed_features(training), summed_features(test)
    return np.column_stack([fit_one(known, costs[:, column], asked, seed) for column in range(costs.shape[1])])


def _boosted(known: Any, cost: FloatArray, asked: Any, seed: int) -> FloatArray:
    trees = GradientBoostingRegressor(
        n_estimators=TREES,
        learning_rate=0.05,
        max_depth=4,
        subsample=0.7,
        max_features=0.5,
        loss="huber",
        random_state=seed,
    )
    trees.fit(_tree_inputs(*known), np.log(cost))
    return np.exp(trees.predict(_tree_inputs(*asked)))


def _tree_inputs(work: FloatArray, context: FloatArray) -> FloatArray:
    return np.column_stack([work, np.log(work + 1e-9), context])


def _linear(known: Any, cost: FloatArray, asked: Any, seed: int) -> FloatArray:  # noqa: ARG001
    line = LinearRegression(positive=True, fit_intercept=False)
    line.fit(known[0] / cost[:, None], np.ones(len(cost)))
    return asked[0] @ line.coef_

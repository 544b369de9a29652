"""Fits the costs of reductions (reduce_scatter, all_gather, all_reduce) to measured samples.

The accuracy is tested at sizes, and for groups (numbers of ranks and hosts), that a second fit leaves out.

Shapes: K measured sizes of a group.
"""

import math
from collections.abc import Iterator

import numpy as np
import pandas as pd

from neuroshard_pipeline.arrays import FloatArray
from neuroshard_pipeline.cost_models.intervals import COVERAGE
from neuroshard_pipeline.cost_models.metrics import Metrics, accuracy
from neuroshard_pipeline.cost_models.reductions import Curve, Group, ReductionCosts
from neuroshard_pipeline.errors import CostModelError
from neuroshard_pipeline.tables.samples import REDUCTIONS, Reduction

#: Fewest sizes of a group from which every second one can be left out.
_LEAST_SIZES = 3
#: Log error per doubling of the ranks if too few groups were measured to know it: a factor of 2.
_UNKNOWN_LOG_ERROR = math.log(2)

#: Measured sizes and costs (K,) of every group.
Points = dict[Group, tuple[FloatArray, FloatArray]]


def fit_reductions(samples: pd.DataFrame, costs: pd.DataFrame) -> tuple[ReductionCosts, Metrics]:
    """Fit the costs of all collectives.

    Args:
        samples: `augment.reduction_samples`.
        costs: `measure.reduction_costs`; samples with an error are left out.

    Returns:
        The model, and metrics of every collective: the `metrics.accuracy` for every second size, predicted from the
        other sizes; `n_test`, the number of these costs; and `error_per_doubling`. The last is the 90th percentile of
        the relative error for a group that is predicted from other groups, per factor of 2 between its number of ranks
        and that of the nearest other group; None unless three groups have the same number of ranks per host, or are all
        on one host.

    Raises:
        CostModelError: a collective has no usable size, or a group with usable sizes has fewer than three.
    """
    rows = samples.merge(costs, on="sample_id")
    rows = rows[rows["error"].isna()]
    curves, log_error, per_doubling = {}, {}, {}
    metrics: Metrics = {}
    for collective in REDUCTIONS:
        points = _points(collective, rows)
        truth, guess = _held_out_sizes(points)
        log_error[collective] = _upper(np.abs(np.log(guess / truth)))
        curves[collective] = {group: _curve(*measured) for group, measured in points.items()}
        errors = np.array(list(_held_out_groups(collective, curves[collective]))).ravel()
        per_doubling[collective] = _upper(errors) if errors.size else _UNKNOWN_LOG_ERROR
        metrics[collective] = {
            **accuracy(truth, guess, None),
            "error_per_doubling": math.expm1(_upper(errors)) if errors.size else None,
            "n_test": len(truth),
        }
    return ReductionCosts(curves, log_error, per_doubling), metrics


def _points(collective: Reduction, rows: pd.DataFrame) -> Points:
    points: Points = {}
    groups = rows[rows["collective"] == collective].sort_values("size_bytes").groupby(["world_size", "hosts"])
    for _, group in groups:
        world_size, hosts = (int(group[name].iloc[0]) for name in ("world_size", "hosts"))
        if len(group) < _LEAST_SIZES:
            raise CostModelError(
                f"{collective} on {world_size} ranks has {len(group)} usable sizes, and {_LEAST_SIZES} are needed: "
                "look at the error column of measure.reduction_costs, or raise augment.reduction_samples.num_sizes"
            )
        sizes, costs = (group[name].to_numpy(dtype=np.float64) for name in ("size_bytes", "cost_ms"))
        points[Group(world_size, hosts)] = (sizes, costs)
    if not points:
        raise CostModelError(f"{collective} has no usable size: look at the error column of measure.reduction_costs")
    return points


def _curve(sizes: FloatArray, costs: FloatArray) -> Curve:
    """A curve through the measured costs. Neighbours whose costs fall with the size get their geometric mean."""
    from scipy.optimize import isotonic_regression  # imported late: this takes a third of a second

    return Curve(sizes, np.exp(isotonic_regression(np.log(costs)).x))


def _held_out_sizes(points: Points) -> tuple[FloatArray, FloatArray]:
    """Measured costs of every second size, and their predictions from the other sizes."""
    pairs = [(costs[1::2], _curve(sizes[::2], costs[::2]).at(sizes[1::2])) for sizes, costs in points.values()]
    truth, guess = (np.concatenate(arrays) for arrays in zip(*pairs, strict=True))
    return truth, guess


def _held_out_groups(collective: Reduction, curves: dict[Group, Curve]) -> Iterator[float]:
    """Absolute log errors for every group that can be predicted from two others, per doubling of the ranks."""
    for group, curve in curves.items():
        others = {other: c for other, c in curves.items() if other != group and other.density == group.density}
        if len(others) >= 2:
            predicted = ReductionCosts({collective: others}, {}, {collective: 0.0}).curve(collective, group)
            doublings = min(abs(math.log2(group.world_size / other.world_size)) for other in others)
            yield from np.abs(np.log(predicted.at(curve.size_bytes) / curve.cost_ms)) / doublings


def _upper(errors: FloatArray) -> float:
    return float(np.quantile(errors, COVERAGE))

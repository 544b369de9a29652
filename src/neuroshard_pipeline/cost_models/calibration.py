"""Calibrates the prediction intervals of `intervals`: a prediction `cost` has the interval `[cost / f, cost * f]`.

Inside the range of the training samples, the factor f is

    log(f) = quantile * scale
    scale = exp(c0 + c1 * log(cost) + c2 * log(spread + floor))

where `spread` is the standard deviation of the log costs that the ensemble members predict, and `floor` is a constant.
The coefficients c are fitted to the training samples: they maximise the log likelihood of the errors of log costs under
a Laplace distribution, less a small ridge penalty. The quantile is one number, the conformal quantile of the validation
errors, each divided by its scale (Lei et al., "Distribution-Free Predictive Inference for Regression", 2018, §5.2).
Errors are smaller on training samples than on others, so the scale is too small; the quantile corrects this. An
inaccurate scale makes intervals wider, but their coverage stays correct.

This formula of the scale was chosen by the interval score on held-out samples, over five splits of 1,200 FBGEMM
samples. The score is the width plus 20 times the distance of a measurement from its interval, and lower is better. The
formula scores 0.161, or 0.167 if it is fitted to the validation samples. A constant scale scores 0.180; its intervals
cover 96 % of the cheaper half of the samples, but 83 % of the other half. `spread` alone as the scale scores 0.173.
Conformal quantile regression with boosted trees also scores 0.161, but a search could not compute it: to be fast, a
search knows only the sum of the embeddings of a rank's shards (`compute.embed`).

Shapes: N measured costs, S shards or ranks of training samples, E ensemble members, F context features, K scale terms.
"""

from dataclasses import dataclass
from typing import Self

import numpy as np
from scipy.optimize import minimize

from neuroshard_pipeline.arrays import FloatArray
from neuroshard_pipeline.cost_models.intervals import COVERAGE, SMALLEST_MS, Calibration, member_spread, scale_terms

#: Ridge penalty. If there are few samples, it keeps the slopes close to 0 and thereby the scale nearly constant.
_RIDGE = 0.01

#: A term of the log scale counts as constant if its standard deviation over the samples is at most this. The logarithms
#: of costs and spreads usually vary far more.
_CONSTANT = 1e-6


@dataclass(frozen=True)
class Predictions:
    """Measured ms of samples (N,), their prediction, and the standard deviation of the members' log costs.

    A prediction is the mean of the members of an ensemble.
    """

    measured: FloatArray
    predicted: FloatArray
    spread: FloatArray

    @classmethod
    def of(cls, measured: FloatArray, member_costs: FloatArray) -> Self:
        """Predictions from measured costs (N,) and the costs (E, N) that the E members predict."""
        return cls(measured, member_costs.mean(axis=0), member_spread(member_costs))

    @property
    def log_error(self) -> FloatArray:
        """(N,) absolute error of the log cost."""
        return np.abs(np.log(np.maximum(self.predicted, SMALLEST_MS) / self.measured))


def calibrate(training: Predictions, validation: Predictions, training_context: FloatArray) -> Calibration:
    """Fit the scale and the quantile of the prediction intervals; return them with the training ranges.

    Args:
        training: predictions for the samples to which the weights of the model were fitted.
        validation: predictions for other samples.
        training_context: (S, F) context of the shards (compute) or ranks (communication) of all training samples.
    """
    cost_range_ms = np.array([training.measured.min(), training.measured.max()])
    seen, unseen = (scale_terms(part.predicted, part.spread, cost_range_ms) for part in (training, validation))
    coefficients = laplace_scale(seen, training.log_error)
    quantile = conformal_quantile(validation.log_error / np.exp(unseen @ coefficients))
    low, high = training_context.min(axis=0), training_context.max(axis=0)
    return Calibration(coefficients, np.array([quantile]), low, high, cost_range_ms)


def laplace_scale(terms: FloatArray, error: FloatArray) -> FloatArray:
    """Coefficients (K,) of `log(scale)` that minimise the mean of `error / scale + log(scale)` plus a ridge penalty.

    The problem is convex. The last coefficient is at least 0, so that disagreement between members never narrows an
    interval. It is at most 1, so that the scale grows at most in proportion to the disagreement. Members that are
    fitted to costs without noise agree within 0.1 % on most training samples, but differ by 4 % on rare inputs. A
    coefficient of 2 may suit most samples; with it, intervals of rare inputs would end at thousands of times the cost.
    A term besides the constant that does not vary, such as the spread of a single member, gets 0.

    Args:
        terms: (N, K), the constant 1 first.
        error: (N,) absolute errors.
    """
    centre, spread = terms[:, 1:].mean(axis=0), terms[:, 1:].std(axis=0)
    varies = spread > _CONSTANT
    width = np.where(varies, spread, 1.0)
    standard = np.column_stack([terms[:, 0], (terms[:, 1:] - centre) / width])

    def loss(coefficients: FloatArray) -> tuple[float, FloatArray]:
        log_scale = standard @ coefficients
        share = error * np.exp(-log_scale)
        pull = _RIDGE * np.concatenate([[0.0], coefficients[1:]])
        gradient = standard.T @ (1.0 - share) / len(error) + 2 * pull
        return float(np.mean(share + log_scale) + pull @ coefficients), gradient

    start = np.zeros(standard.shape[1])
    start[0] = np.log(error.mean() + 1e-9)
    bounds = [(None, None)] * (len(start) - 1) + [(0.0, width[-1])]
    found = minimize(loss, start, jac=True, method="L-BFGS-B", bounds=bounds).x
    slopes = np.where(varies, found[1:] / width, 0.0)
    return np.concatenate([[found[0] - slopes @ centre], slopes])


def conformal_quantile(scores: FloatArray) -> float:
    """The smallest of these scores for which a new score is larger with a probability of at most 1 - `COVERAGE`.

    This holds for any distribution of scores. Fewer than nine scores cannot guarantee it; the largest is then returned.
    """
    rank = int(np.ceil((len(scores) + 1) * COVERAGE))
    return float(np.sort(scores)[min(rank, len(scores)) - 1])

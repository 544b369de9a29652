"""Fits the models that `bench_cost_models.py` compares on measured samples.

Models of the same samples share one split into training, validation and test samples per seed.
The models of the modelled cluster are fitted in `bench_comm_models.py`. The benchmark compares implementations of
`Estimator`: the product's model, the paper's network, and baselines. Each `fit_*` function is a job that runs in one
process. A job fits one model, or several that need the same data, and returns its rows of the result tables, by the
name of the table.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import numpy as np
from cost_model_aims import TRAINED_ON_PAPER
from cost_model_baselines import fit_predict_baseline
from cost_model_inputs import CommInputs, ComputeInputs, paper_samples
from paper_networks import PAPER_SCHEDULE, fit_paper_comm, fit_paper_compute

from neuroshard_pipeline.cost_models.comm_training import comm_intervals, fit_comm, predict_comm
from neuroshard_pipeline.cost_models.compute_training import compute_intervals, fit_compute, predict_compute
from neuroshard_pipeline.cost_models.intervals import coverage, relative_width
from neuroshard_pipeline.cost_models.measured import CommData, ComputeData, Measured, Split, split_samples
from neuroshard_pipeline.cost_models.metrics import accuracy
from neuroshard_pipeline.cost_models.params import CommTrainParams, ComputeTrainParams, FitParams

#: Names of the models in the result tables.
OURS, PAPER = "universal", "paper"

#: Names of sample sets in the result tables: all held-out samples of the run, and only those of the paper's kind.
HELD_OUT, HELD_OUT_PAPER = "held out", "held out, paper's kind"

#: Shares of the training samples that the learning curve uses, in addition to all of them.
LEARNING_SHARES = (0.1, 0.25, 0.5)

#: Measures of accuracy in the result tables.
FIGURES = ("mape", "median_ape", "bias", "kendall_tau")

Row = dict[str, Any]
Tables = dict[str, list[Row]]


@dataclass(frozen=True)
class Fitted:
    """A fitted model.

    Attributes:
        predict: samples -> forward and backward ms, (N, 2) for compute samples, (ranks of all samples, 2) for
            collectives.
        intervals: samples -> lower and upper bounds in ms: (N, 2) of forward + backward for compute samples; two arrays
            (ranks of all samples, 2) for collectives, forward and backward. None without prediction intervals.
    """

    predict: Callable[[Sequence[Any]], np.ndarray]
    intervals: Callable[[Sequence[Any]], Any] | None = None


class Estimator(Protocol):
    """A kind of model with its parameters."""

    @property
    def name(self) -> str:
        """Name in the result tables."""
        ...

    def fit(self, data: Any, split: Split) -> Fitted:
        """Fit to the training samples of a split."""
        ...


@dataclass(frozen=True)
class Ours:
    """The product's compute cost model."""

    params: ComputeTrainParams
    name: str = OURS

    def fit(self, data: ComputeData, split: Split) -> Fitted:
        """Fit to the training samples of a split."""
        model = fit_compute(data, split, self.params, {})
        return Fitted(partial(predict_compute, model), partial(compute_intervals, model))


@dataclass(frozen=True)
class Paper:
    """The paper's compute network, with `PAPER_SCHEDULE`."""

    params: FitParams
    name: str = PAPER

    def fit(self, data: ComputeData, split: Split) -> Fitted:
        """Fit to the training samples of a split."""
        return Fitted(fit_paper_compute(data, split, self.params.model_copy(update=PAPER_SCHEDULE)).predict)


@dataclass(frozen=True)
class Baseline:
    """A model of `cost_model_baselines`."""

    name: str
    seed: int

    def fit(self, data: ComputeData, split: Split) -> Fitted:
        """Return a model that is fitted to the training samples of a split again at every prediction."""
        training = data.take(split.training)
        return Fitted(
            lambda test: fit_predict_baseline(self.name, training.samples, training.costs_ms, test, seed=self.seed)
        )


@dataclass(frozen=True)
class OursComm:
    """The product's communication cost model, for any world size."""

    params: CommTrainParams
    name: str = OURS

    def fit(self, data: CommData, split: Split) -> Fitted:
        """Fit to the training samples of a split."""
        model = fit_comm(data, split, self.params, {})
        return Fitted(partial(predict_comm, model), partial(comm_intervals, model))


@dataclass(frozen=True)
class PaperComm:
    """The paper's communication networks for one world size, with `PAPER_SCHEDULE`."""

    params: FitParams
    name: str = PAPER

    def fit(self, data: CommData, split: Split) -> Fitted:
        """Fit to the training samples of a split."""
        return Fitted(fit_paper_comm(data, split, self.params.model_copy(update=PAPER_SCHEDULE)).predict)


def fit_everywhere(inputs: ComputeInputs, estimator: Estimator, params: FitParams) -> Tables:
    """Fit one model to all training samples; test it on held-out samples, `inputs.chosen` and `inputs.groups`."""
    split = split_by(inputs.data, params)
    fitted = estimator.fit(inputs.data, split)
    held_out = inputs.data.take(split.test)
    tests = {HELD_OUT: held_out, HELD_OUT_PAPER: paper_samples(held_out), **inputs.chosen, **inputs.groups}
    about = {"model": estimator.name, "seed": params.seed}
    rows = [{**about, "samples": part, **_figures(test, fitted)} for part, test in tests.items() if test.samples]
    tables: Tables = {"models": rows}
    if isinstance(estimator, Ours | Paper):
        tables["learning"] = [{**about, "count": len(split.training), "mape": rows[0]["mape"]}]
    return tables


def fit_on_paper_samples(inputs: ComputeInputs, estimator: Estimator, params: FitParams) -> Tables:
    """Fit one model to samples of the paper's kind only; test it on held-out samples of that kind."""
    data = paper_samples(inputs.data)
    split = split_by(data, params)
    figures = _figures(data.take(split.test), estimator.fit(data, split))
    about = {"model": estimator.name, "seed": params.seed, "samples": TRAINED_ON_PAPER}
    return {"models": [{**about, **figures}], "paper": [{**about, "training": len(split.training), **figures}]}


def fit_share(data: ComputeData, estimator: Estimator, params: FitParams, share: float) -> Tables:
    """Fit one model to a share of the training samples and test it on all held-out samples, for the learning curve."""
    split = _with_share(split_by(data, params), share, params.seed)
    mape = _figures(data.take(split.test), estimator.fit(data, split))["mape"]
    name, seed = estimator.name, params.seed
    return {"learning": [{"model": name, "seed": seed, "count": len(split.training), "mape": mape}]}


def _with_share(split: Split, share: float, seed: int) -> Split:
    """A split with a random share of the training samples; for one seed, larger shares contain smaller ones."""
    order = np.random.default_rng(seed).permutation(split.training)
    return Split(np.sort(order[: max(1, round(share * len(order)))]), split.validation, split.test)


def split_by(data: Measured[Any], params: FitParams) -> Split:
    """The split that training with `params` uses."""
    return split_samples(data.sample_ids, params.validation_share, params.test_share, params.seed)


def _figures(test: ComputeData, fitted: Fitted) -> Row:
    """Accuracy of the total cost; if the model has prediction intervals, also their coverage and width."""
    measured, predicted = test.costs_ms.sum(axis=1), fitted.predict(test.samples).sum(axis=1)
    found = accuracy(measured, predicted, None)
    figures = {"count": len(test.samples), **{name: found[name] for name in FIGURES}}
    if fitted.intervals is None:
        return figures
    bounds = fitted.intervals(test.samples)
    return {**figures, "coverage": coverage(measured, bounds), "width": relative_width(predicted, bounds)}


def fit_comm_models(inputs: CommInputs, params: CommTrainParams) -> Tables:
    """Fit our model to the collectives of all world sizes, and of all but one; fit the paper's to each size alone.

    The paper's network has no batch size feature. It is trained and tested on samples of the most frequent batch size.
    """
    data = inputs.data
    ours = OursComm(params)
    rows = _world_size_rows("universal, one network", ours, data, data)
    for world_size in sorted({sample.world_size for sample in data.samples}):
        own = data.take([row for row, sample in enumerate(data.samples) if sample.world_size == world_size])
        others = data.take([row for row, sample in enumerate(data.samples) if sample.world_size != world_size])
        alike = own.take([row for row, sample in enumerate(own.samples) if sample.batch_size == data.batch_size])
        rows += _world_size_rows("paper, one per world size", PaperComm(params), alike, alike)
        rows += _world_size_rows("universal, world size not in training", ours, others, own)
    return {"comm": rows}


def _world_size_rows(name: str, estimator: OursComm | PaperComm, training: CommData, test: CommData) -> list[Row]:
    """Fit to `training` and test on the held-out part of `test`; return one row per world size and direction."""
    if len(training.samples) < 10:
        return []
    fitted = estimator.fit(training, split_by(training, estimator.params))
    held_out = test.take(split_by(test, estimator.params).test)
    rows = []
    for world_size in sorted({sample.world_size for sample in held_out.samples}):
        part = held_out.take([row for row, sample in enumerate(held_out.samples) if sample.world_size == world_size])
        measured, predicted = part.costs_ms, fitted.predict(part.samples)
        bounds = fitted.intervals(part.samples) if fitted.intervals else (None, None)
        for column, direction in enumerate(("forward", "backward")):
            accurate = accuracy(measured[:, column], predicted[:, column], None)
            kept = {figure: accurate[figure] for figure in FIGURES}
            covered = np.nan if bounds[column] is None else coverage(measured[:, column], bounds[column])
            rows.append({"direction": direction, "world size": world_size, "model": name, **kept, "coverage": covered})
    return rows

import dataclasses
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from neuroshard_pipeline.evaluation.plan_intervals import BOUND_COLUMNS, plan_intervals_frame
from neuroshard_pipeline.evaluation.prediction_errors import prediction_errors
from neuroshard_pipeline.evaluation.totals import PREDICTED_COLUMNS, plan_costs_frame
from neuroshard_pipeline.search.plan import Plan
from neuroshard_pipeline.search.price import priced
from neuroshard_pipeline.tables.table import Table, whole
from neuroshard_pipeline.tables.task import ShardingTask


class Compute:
    """1 ms per shard in each direction; the interval of the sum is 10 % below and above it."""

    def shard_embeddings(self, shards, batch_size, optimizer="sgd"):  # noqa: ARG002
        return np.ones((len(shards), 1))

    def costs_from_sums(self, sums, batch_size):  # noqa: ARG002
        return np.repeat(sums, 2, axis=-1)

    def interval_from_sums(self, sums, batch_size):  # noqa: ARG002
        return sums * [1.8, 2.2]

    def interval(self, samples, batch_size):  # noqa: ARG002
        return np.array([[1.8 * len(shards), 2.2 * len(shards)] for shards in samples])


class Comm:
    """The wait for the rank that starts last, plus 1 ms; the interval is 50 % below and above this sum."""

    def forward_ms(self, dim_sums, start_skew_ms, batch_size):  # noqa: ARG002
        return 1 + start_skew_ms.max(axis=-1, keepdims=True) - start_skew_ms

    def backward_ms(self, dim_sums, batch_size):
        return self.forward_ms(dim_sums, np.zeros(np.shape(dim_sums)), batch_size)

    def forward_interval_ms(self, dim_sums, start_skew_ms, batch_size):
        return self.forward_ms(dim_sums, start_skew_ms, batch_size)[..., None] * [0.5, 1.5]

    def backward_interval_ms(self, dim_sums, batch_size):
        return self.backward_ms(dim_sums, batch_size)[..., None] * [0.5, 1.5]


@pytest.fixture(scope="module")
def planned():
    models = SimpleNamespace(compute=Compute(), comm=Comm(), step=None, caveats=lambda _: ())
    tables = [Table(f"t{index}", 100, 8, 2.0) for index in range(6)]
    task = ShardingTask(tables, world_size=4, batch_size=512, memory_bytes=2**30, task_id="t")
    plan = Plan(task, tuple(whole(table) for table in tables), (0, 0, 0, 1, 1, 2), "one")
    return priced(plan, models), models


def test_every_part_of_every_rank_lies_in_its_interval(planned):
    plan, models = planned
    frame = plan_intervals_frame([plan], models)
    assert list(frame.columns) == ["task_id", "sharder", "rank", *BOUND_COLUMNS]
    costs = plan_costs_frame([plan])
    for name in PREDICTED_COLUMNS[:3]:
        part = name.removeprefix("predicted_")
        assert np.all(frame[f"low_{part}"] <= costs[name])
        assert np.all(frame[f"high_{part}"] >= costs[name])
    assert frame.loc[0, "low_forward_comm_ms"] == 0.5  # rank 0 starts last and does not wait
    empty = frame[frame["rank"] == 3].iloc[0]
    assert (empty["low_compute_ms"], empty["high_compute_ms"]) == (0, 0)
    assert frame.filter(regex="input_dist|reduction|module").isna().all(axis=None)


def test_coverage_counts_the_measured_costs_inside(planned):
    plan, models = planned
    frame = plan_intervals_frame([plan], models)
    measured = list(plan.predicted.compute_ms)
    measured[1] *= 3  # far outside
    known = {"measured_compute_ms": measured, "measured_forward_comm_ms": plan.predicted.forward_comm_ms}
    measured_costs = pd.DataFrame({"task_id": "t", "sharder": "one", "rank": range(4), **known})
    costs = plan_costs_frame([plan], measured_costs)
    errors = prediction_errors(costs, frame)
    assert errors["compute"]["coverage_90"] == pytest.approx(2 / 3)  # the fourth rank is empty
    assert errors["forward_comm"]["coverage_90"] == 1.0
    width = (frame["high_forward_comm_ms"] - frame["low_forward_comm_ms"]) / costs["predicted_forward_comm_ms"]
    assert errors["forward_comm"]["mean_relative_width"] == pytest.approx(width.mean())
    assert "backward_comm" not in errors


def test_plans_without_a_prediction_have_no_interval(planned):
    plan, models = planned
    none = plan_intervals_frame([dataclasses.replace(plan, predicted=None)], models)
    assert list(none.columns) == list(plan_intervals_frame([plan], models).columns)
    assert isinstance(none, pd.DataFrame)
    assert none.empty

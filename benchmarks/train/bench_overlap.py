"""Does another plan become the best one if the dense network hides parts of the embedding step?

Parts that run beside the dense network cost nothing if they take less time than it. For every set of hidden parts, the
search plans once with their full costs, as it does by itself, and once with the costs of the hidden parts set to 0, as
if it was told that the dense network takes longer. Both plans are then priced without the hidden parts. The gain is
what telling the search lowers this price by; it is at least 0, because both plans are candidates. All prices are
predictions: nothing is measured.

    input dist              `TrainPipelineSparseDist`; `ShardingTask.pipelines_input_dist` tells the search
    output dist             a model that computes its bottom MLP between the start and the wait of the output dist
    output dist, both ways  the same in the backward pass
    forward half            `TrainPipelineSemiSync`: input dist, lookups and output dist of the next batch

    python benchmarks/train/bench_overlap.py        # the lab's H100; a few minutes on one core
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from sys import path as sys_path
from typing import Any

import numpy as np
import pandas as pd

import neuroshard_pipeline as ns
from neuroshard_pipeline.search.plan import Plan
from neuroshard_pipeline.search.price import priced

sys_path.insert(0, str(Path(__file__).resolve().parents[1] / "search"))
from whole_cost_tasks import suite_tasks


@dataclass(frozen=True)
class Hidden:
    """A model of which some calls return less: `shares` of the costs are hidden, by name of the call."""

    model: Any
    shares: dict[str, float | np.ndarray]

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.model, name)
        if name not in self.shares:
            return found
        return lambda *given, **named: found(*given, **named) * (1.0 - self.shares[name])


FORWARD = {"forward_ms": 1.0}
#: Sets of hidden parts: whether the input dist is, calls of the communication model, and calls of the compute model.
HIDDEN: dict[str, tuple[bool, dict[str, Any], dict[str, Any]]] = {
    "input dist": (True, {}, {}),
    "output dist": (False, FORWARD, {}),
    "output dist, both ways": (False, FORWARD | {"backward_ms": 1.0}, {}),
    "forward half": (True, FORWARD, {"costs_from_sums": np.array([1.0, 0.0])}),
}


def models_with(models: Any, comm: dict[str, Any], compute: dict[str, Any]) -> Any:
    """The models without the hidden parts."""
    return replace(models, comm=Hidden(models.comm, comm), compute=Hidden(models.compute, compute))


def same_placement(one: Plan, other: Plan) -> bool:
    """Whether two plans have the same shards on the same ranks."""
    return set(zip(one.shards, one.ranks, strict=True)) == set(zip(other.shards, other.ranks, strict=True))


def gains(tasks: Iterable[ns.ShardingTask], models: Any) -> Iterator[dict[str, Any]]:
    """A row per task and set of hidden parts."""
    for task in tasks:
        plain = ns.shard(task, models)
        for name, (hides_ids, comm, compute) in HIDDEN.items():
            told_models = models_with(models, comm, compute)
            told = ns.shard(replace(task, pipelines_input_dist=hides_ids), told_models)
            untold = priced(replace(plain, task=replace(plain.task, pipelines_input_dist=hides_ids)), told_models)
            step_ms, hidden_ms = plain.predicted_cost_ms, untold.predicted_cost_ms
            row = {"task": task.task_id, "hidden": name, "step_ms": step_ms, "hidden_share": 1 - hidden_ms / step_ms}
            gain = max(1.0 - told.predicted_cost_ms / hidden_ms, 0.0)
            yield row | {"gain": gain, "same_plan": same_placement(told, plain)}


def predicted() -> None:
    """Tables with published statistics on 8 GPUs of the lab."""
    tasks, rows = suite_tasks("published", 8, 4), []
    for row in gains(tasks, ns.load_cost_models("h100")):
        rows.append(row)
        print({key: round(value, 4) if isinstance(value, float) else value for key, value in row.items()}, flush=True)
    summary = pd.DataFrame(rows).groupby("hidden", sort=False)[["hidden_share", "gain", "same_plan"]]
    print(summary.agg(["mean", "max"]).astype(float).round(4).to_string())


if __name__ == "__main__":
    predicted()

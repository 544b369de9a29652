"""Speed and quality of the searches, compared with a plain implementation, long runs, lower bounds and brute force.

The plain implementation is `ScalarOracle` of the tests, called the oracle below. It prices one plan at a time and one
rank after the other, and caches only the embeddings and costs of single shards. The search must find a plan of the same
cost. The oracle was written for the tests, so the ratio of the times says nothing about published code.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from cost_bounds import cost_bound, shape_of
from search.brute_force import best_placement_ms, best_with_halvings_ms
from search.scalar_oracle import ScalarOracle
from search.settings import LOCAL_SEARCH, PAPER_SEARCH, WEIGHTS_AND_OPTIMIZER
from search.small_models import SmallModels
from search.tasks import random_task

from neuroshard_pipeline.search.beam import beam_search
from neuroshard_pipeline.search.local_search import local_search
from neuroshard_pipeline.search.models import Models
from neuroshard_pipeline.search.placement import PlacedState
from neuroshard_pipeline.search.problem import Problem
from neuroshard_pipeline.tables.task import ShardingTask

NEVER = 10**9

#: Wide caps on dimension sums: the caps of the paper, at most 1.5 times the mean, may exclude good plans.
WIDE_CAPS = PAPER_SEARCH.model_copy(update={"num_caps": 31, "max_cap_ratio": 4.0})


def benchmark_task(index: int) -> ShardingTask:
    """4 ranks with 10 to 60 tables if `index` is even, else 8 ranks with 20 to 120 tables [Zha2023] §4."""
    rng = np.random.default_rng(index)
    world_size = 4 if index % 2 == 0 else 8
    return random_task(rng, int(rng.integers(10, 61)) * world_size // 4, world_size, 0.6)


def searched(task: ShardingTask, models: Models) -> tuple[Problem, PlacedState, float]:
    """The problem, the result of the beam search with the settings of the paper, and the seconds for both."""
    start = time.perf_counter()
    problem = Problem(task, models, WEIGHTS_AND_OPTIMIZER)
    found = beam_search(problem, PAPER_SEARCH)[0]
    return problem, found, time.perf_counter() - start


def improved_ms(problem: Problem, start: PlacedState, seconds: float, seed: int = 0) -> float:
    """Predicted cost after `seconds` of local search."""
    params = LOCAL_SEARCH.model_copy(update={"max_rounds": NEVER, "time_budget_seconds": max(seconds, 1e-9)})
    return local_search(start, problem, params, np.random.default_rng(seed))[0].cost / 1e9


def best_known_ms(problem: Problem, placement: PlacedState, seconds: float) -> float:
    """Lowest cost of four local searches, `seconds` in total, from the paper's plan and from a plan with wide caps."""
    wide = beam_search(problem, WIDE_CAPS)[0]
    starts = [(placement, 1), (wide, 2), (placement, 3), (wide, 4)]
    return min(improved_ms(problem, start, seconds / len(starts), seed) for start, seed in starts)


def lower_bound_ms(problem: Problem) -> float:
    """A proved lower bound on the cost of every plan; NaN if none is proved for these models."""
    if isinstance(problem.models, SmallModels):
        # Non-negative weights and a ReLU head make the compute model convex. Communication rises with a rank's own
        # columns, and with their mean square and their maximum over ranks. Its mean over ranks is lowest if all ranks
        # have the same number of columns. Waiting for other ranks never lowers the cost.
        world_size = problem.task.world_size
        even = np.full((1, world_size), sum(unit.width for unit in problem.units) / world_size)
        comm, batch_size = problem.models.comm, problem.task.batch_size
        floor = float(
            (comm.forward_ms(even, np.zeros_like(even), batch_size) + comm.backward_ms(even, batch_size)).max()
        )
        bound = cost_bound(problem, "convex", lambda _: floor)
    else:
        bound = cost_bound(problem, shape_of(problem.models))
    return float("nan") if bound is None else bound.embedding_cost_ms


@dataclass(frozen=True)
class Comparison:
    """One task: the oracle, the beam search, local search (`plus`), long searches (`best`), and the lower bound."""

    index: int
    task: ShardingTask
    oracle_seconds: float
    search_seconds: float
    oracle_ms: float
    search_ms: float
    plus_ms: float
    best_ms: float
    bound_ms: float

    @property
    def row(self) -> str:
        """A line of the table."""
        below, at_most = 1 - self.plus_ms / self.oracle_ms, 1 - self.bound_ms / self.oracle_ms
        return (
            f"{self.index:4d}  {self.task.world_size:5d} {len(self.task.tables):6d} | {self.oracle_seconds:8.2f}  "
            f"{self.search_seconds:8.4f} {self.oracle_seconds / self.search_seconds:6.0f} | {self.oracle_ms:9.4f} "
            f"{self.search_ms:9.4f} {self.plus_ms:9.4f} {self.best_ms:9.4f} {self.bound_ms:9.4f} | {below:6.2%} "
            f"{1 - self.best_ms / self.oracle_ms:6.2%} {at_most:6.2%}"
        )


COMPARISON_HEADING = (
    "task  ranks tables | oracle s  search s  ratio | oracle ms search ms   plus ms   best ms  bound ms |  below the "
    "oracle's cost: plus, best, bound"
)


def compare_on(index: int, models: Models, best_seconds: float, best_tasks: int) -> Comparison:
    """Solve task `index` with the oracle and the searches, and if `index < best_tasks`, with long searches, too."""
    task = benchmark_task(index)
    runs = [searched(task, models) for _ in range(3)]
    problem, placement, _ = runs[0]
    search_seconds = statistics.median(seconds for *_, seconds in runs)
    start = time.perf_counter()
    found = ScalarOracle(task, models, WEIGHTS_AND_OPTIMIZER, PAPER_SEARCH).search()
    oracle_seconds = time.perf_counter() - start
    assert found is not None, "the oracle solves every task, because the tables fill 60 % of the memory"
    plus_ms = improved_ms(problem, placement, oracle_seconds / 10 - search_seconds)
    long = index < best_tasks
    best_ms = min(plus_ms, best_known_ms(problem, placement, best_seconds)) if long else float("nan")
    result = Comparison(
        index, task, oracle_seconds, search_seconds, found[0], placement.cost / 1e9, plus_ms, best_ms,
        lower_bound_ms(problem),
    )  # fmt: skip
    assert abs(result.search_ms - result.oracle_ms) < 1e-5, "the search found another cost than the oracle"
    assert result.plus_ms <= result.oracle_ms + 1e-5, "local search returned a worse plan"
    assert not result.bound_ms > np.fmin(best_ms, plus_ms) + 1e-9, "a plan is cheaper than the lower bound of its task"
    return result


def report_comparisons(comparisons: list[Comparison]) -> None:
    """Print means and medians over the tasks."""
    ratios = [each.oracle_seconds / each.search_seconds for each in comparisons]

    def mean(part: Callable[[Comparison], float], of: list[Comparison] = comparisons) -> str:
        return f"{statistics.mean(part(each) for each in of):.2%}"

    print(
        f"The oracle needs {statistics.median(ratios):.0f} times as long as the search in the median, and "
        f"{min(ratios):.0f} times at least. In a tenth of the oracle's time, local search finds plans whose predicted "
        f"cost is {mean(lambda d: 1 - d.plus_ms / d.oracle_ms)} below the oracle's on average; the lower bounds are "
        f"{mean(lambda d: 1 - d.bound_ms / d.oracle_ms)} below it. Mean gap of local search to the lower bound: "
        f"{mean(lambda d: d.plus_ms / d.bound_ms - 1)}"
    )
    if long := [each for each in comparisons if not math.isnan(each.best_ms)]:
        print(
            f"On {len(long)} tasks, the best plans of the long searches cost "
            f"{mean(lambda d: 1 - d.best_ms / d.oracle_ms, long)} less than those of the oracle. Mean gap to these "
            f"plans: beam search {mean(lambda d: d.search_ms / d.best_ms - 1, long)}, local search "
            f"{mean(lambda d: d.plus_ms / d.best_ms - 1, long)}. Mean gap of these plans to the lower bound: "
            f"{mean(lambda d: d.best_ms / d.bound_ms - 1, long)}"
        )


def against_brute_force(models: Models, num_tasks: int) -> None:
    """Compare on tasks that are so small that every plan can be tried."""
    print("\nBrute force on 2 ranks, cost in ms. Left: placements of whole tables. Middle: 3 tables, up to 2 halvings.")
    print("Right: local search with splits on the tasks of the left part, against the best placement of whole tables.")
    print(
        "task tables | brute force  searched     gap | tables | brute force  searched     gap    local     gap"
        "  |   local     gap"
    )
    for index in range(num_tasks):
        rng = np.random.default_rng(1000 + index)
        task = random_task(rng, int(rng.integers(3, 7)), 2, 0.3)
        whole_tables = PAPER_SEARCH.model_copy(update={"max_steps": 0})
        oracle = ScalarOracle(task, models, WEIGHTS_AND_OPTIMIZER, whole_tables)
        best = best_placement_ms(oracle, [(i, table.embedding_dim) for i, table in enumerate(task.tables)])
        problem = Problem(task, models, WEIGHTS_AND_OPTIMIZER)
        found = beam_search(problem, whole_tables)[0].cost / 1e9
        plus_on_all = improved_ms(*searched(task, models)[:2], 0.2)
        tiny = dataclasses.replace(task, tables=task.tables[:3])
        two_splits = PAPER_SEARCH.model_copy(update={"max_steps": 2})
        best_split = best_with_halvings_ms(ScalarOracle(tiny, models, WEIGHTS_AND_OPTIMIZER, two_splits), 2)
        problem = Problem(tiny, models, WEIGHTS_AND_OPTIMIZER)
        placement = beam_search(problem, two_splits)[0]
        split, plus = placement.cost / 1e9, improved_ms(problem, placement, 0.2)
        assert best is not None
        assert best_split is not None
        print(
            f"{index:4d} {len(task.tables):6d} | {best:11.4f} {found:9.4f} {found / best - 1:7.2%} | {3:6d} | "
            f"{best_split:11.4f} {split:9.4f} {split / best_split - 1:7.2%} {plus:8.4f} {plus / best_split - 1:7.2%} | "
            f"{plus_on_all:8.4f} {plus_on_all / best - 1:7.2%}",
            flush=True,
        )

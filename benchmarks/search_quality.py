"""Speed and quality of the searches against one plan at a time, long runs, lower bounds and brute force."""

from __future__ import annotations

import dataclasses
import math
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from search.brute_force import best_placement_ms, best_with_halvings_ms
from search.scalar_oracle import ScalarOracle
from search.small_models import SmallModels
from search.tasks import random_task

from neuroshard_pipeline.search.bounds import cost_bound, shape_of
from neuroshard_pipeline.search.columns import beam_search
from neuroshard_pipeline.search.kinds import ShardKinds
from neuroshard_pipeline.search.memory import WEIGHTS_AND_OPTIMIZER
from neuroshard_pipeline.search.params import PAPER_SEARCH, REFINEMENT
from neuroshard_pipeline.search.placement import Placement
from neuroshard_pipeline.search.refine import refine
from neuroshard_pipeline.search.simulator import Models
from neuroshard_pipeline.tables.task import ShardingTask

NEVER = 10**9

#: What is compared here is the predicted cost: local search without the caution that measured costs ask for.
PREDICTED_ONLY = REFINEMENT.model_copy(
    update={"max_rounds": NEVER, "caution": 0.0, "expected_error": 0.0, "interval_share": 0.0}
)

#: Caps that hardly bind: what the paper's, at most 1.5 times the mean dimension sum, may rule out.
WIDE_CAPS = PAPER_SEARCH.model_copy(update={"num_caps": 31, "max_cap_ratio": 4.0})


def benchmark_task(index: int) -> ShardingTask:
    """4 ranks with 10-60 tables or, every other time, 8 ranks with 20-120 [Zha2023] §4."""
    rng = np.random.default_rng(index)
    world_size = 4 if index % 2 == 0 else 8
    return random_task(rng, int(rng.integers(10, 61)) * world_size // 4, world_size, 0.6)


def searched(task: ShardingTask, models: Models) -> tuple[ShardKinds, Placement, float]:
    """Kinds, placement and seconds of the paper's search."""
    start = time.perf_counter()
    kinds = ShardKinds(task, models, WEIGHTS_AND_OPTIMIZER)
    placement = beam_search(kinds, PAPER_SEARCH)
    return kinds, placement, time.perf_counter() - start


def refined_ms(kinds: ShardKinds, placement: Placement, seconds: float, seed: int = 0) -> float:
    """Cost after `seconds` of local search."""
    params = PREDICTED_ONLY.model_copy(update={"time_budget_seconds": max(seconds, 1e-9)})
    return refine(placement, kinds, params, np.random.default_rng(seed)).cost / 1e9


def best_known_ms(kinds: ShardKinds, placement: Placement, seconds: float) -> float:
    """Lowest cost of local searches of `seconds` in all: from the paper's plan, from a wide-cap one, other seeds."""
    wide = beam_search(kinds, WIDE_CAPS)
    starts = [(placement, 1), (wide, 2), (placement, 3), (wide, 4)]
    return min(refined_ms(kinds, start, seconds / len(starts), seed) for start, seed in starts)


def lower_bound_ms(kinds: ShardKinds) -> float:
    """What no plan can cost less than, proved for these models; NaN where nothing is."""
    if isinstance(kinds.models, SmallModels):
        # Non-negative weights and a ReLU head make the compute model convex. Communication rises with a rank's own
        # columns and with their mean square, both least for an even spread over all ranks; waiting is never negative.
        world_size = kinds.task.world_size
        even = np.full((1, world_size), sum(unit.width for unit in kinds.units) / world_size)
        comm, batch_size = kinds.models.comm, kinds.task.batch_size
        floor = float(
            (comm.forward_ms(even, np.zeros_like(even), batch_size) + comm.backward_ms(even, batch_size)).max()
        )
        bound = cost_bound(kinds, "convex", lambda _: floor)
    else:
        bound = cost_bound(kinds, shape_of(kinds.models))
    return float("nan") if bound is None else bound.embedding_cost_ms


@dataclass(frozen=True)
class Duel:
    """One task: seconds and costs in ms; `best_ms` is NaN where no long search ran."""

    index: int
    task: ShardingTask
    oracle_seconds: float
    engine_seconds: float
    oracle_ms: float
    engine_ms: float
    plus_ms: float
    best_ms: float
    bound_ms: float

    @property
    def row(self) -> str:
        """A line of the table."""
        below, left = 1 - self.plus_ms / self.oracle_ms, 1 - self.bound_ms / self.oracle_ms
        return (
            f"{self.index:4d}  {self.task.world_size:5d} {len(self.task.tables):6d} | {self.oracle_seconds:8.2f}  "
            f"{self.engine_seconds:8.4f} {self.oracle_seconds / self.engine_seconds:6.0f} | {self.oracle_ms:9.4f} "
            f"{self.engine_ms:9.4f} {self.plus_ms:9.4f} {self.best_ms:9.4f} {self.bound_ms:9.4f} | {below:6.2%} "
            f"{1 - self.best_ms / self.oracle_ms:6.2%} {left:6.2%}"
        )


DUEL_HEADING = (
    "task  ranks tables | oracle s  engine s  ratio | oracle ms engine ms   plus ms   best ms  bound ms |  below the "
    "oracle's: plus, best, at most"
)


def duel(index: int, models: Models, best_seconds: float, best_tasks: int) -> Duel:
    """Oracle, engine, local search in a tenth of the oracle's time, lower bound; for the first tasks a long search."""
    task = benchmark_task(index)
    runs = [searched(task, models) for _ in range(3)]
    kinds, placement, _ = runs[0]
    engine_seconds = statistics.median(seconds for *_, seconds in runs)
    start = time.perf_counter()
    found = ScalarOracle(task, models, WEIGHTS_AND_OPTIMIZER, PAPER_SEARCH).search()
    oracle_seconds = time.perf_counter() - start
    assert found is not None, "the tasks leave room"
    plus_ms = refined_ms(kinds, placement, oracle_seconds / 10 - engine_seconds)
    long = index < best_tasks
    best_ms = min(plus_ms, best_known_ms(kinds, placement, best_seconds)) if long else float("nan")
    result = Duel(
        index, task, oracle_seconds, engine_seconds, found[0], placement.cost / 1e9, plus_ms, best_ms,
        lower_bound_ms(kinds),
    )  # fmt: skip
    assert abs(result.engine_ms - result.oracle_ms) < 1e-5, "the engine found another cost than the oracle"
    assert result.plus_ms <= result.oracle_ms + 1e-5, "local search returned a worse plan"
    assert not result.bound_ms > np.fmin(best_ms, plus_ms) + 1e-9, "a plan is cheaper than its lower bound"
    return result


def report_duels(duels: list[Duel]) -> None:
    """The figures that the table adds up to."""
    ratios = [each.oracle_seconds / each.engine_seconds for each in duels]

    def mean(part: Callable[[Duel], float], of: list[Duel] = duels) -> str:
        return f"{statistics.mean(part(each) for each in of):.2%}"

    print(
        f"median ratio {statistics.median(ratios):.0f} (least {min(ratios):.0f}); predicted cost of local search in a "
        f"tenth of the oracle's time on average {mean(lambda d: 1 - d.plus_ms / d.oracle_ms)} below the oracle's; no "
        f"plan can be more than {mean(lambda d: 1 - d.bound_ms / d.oracle_ms)} below. Gap of local search to the bound "
        f"{mean(lambda d: d.plus_ms / d.bound_ms - 1)}"
    )
    if long := [each for each in duels if not math.isnan(each.best_ms)]:
        print(
            f"best of long searches, {len(long)} tasks: {mean(lambda d: 1 - d.best_ms / d.oracle_ms, long)} below the "
            f"oracle's. Gap to it of the paper's search {mean(lambda d: d.engine_ms / d.best_ms - 1, long)}, of local "
            f"search {mean(lambda d: d.plus_ms / d.best_ms - 1, long)}; its own to the bound "
            f"{mean(lambda d: d.best_ms / d.bound_ms - 1, long)}"
        )


def against_brute_force(models: Models, num_tasks: int) -> None:
    """Tiny tasks, where everything can be tried."""
    print("\nAgainst brute force, 2 ranks (ms): table-wise over all placements; with splits over up to 2 halvings")
    print(
        "task tables | brute force  searched     gap | tables | brute force  searched     gap  refined     gap"
        "  |    plus     gap"
    )
    for index in range(num_tasks):
        rng = np.random.default_rng(1000 + index)
        task = random_task(rng, int(rng.integers(3, 7)), 2, 0.3)
        whole_tables = PAPER_SEARCH.model_copy(update={"max_steps": 0})
        oracle = ScalarOracle(task, models, WEIGHTS_AND_OPTIMIZER, whole_tables)
        best = best_placement_ms(oracle, [(i, table.embedding_dim) for i, table in enumerate(task.tables)])
        kinds = ShardKinds(task, models, WEIGHTS_AND_OPTIMIZER)
        found = beam_search(kinds, whole_tables).cost / 1e9
        plus_on_all = refined_ms(*searched(task, models)[:2], 0.2)
        tiny = dataclasses.replace(task, tables=task.tables[:3])
        two_splits = PAPER_SEARCH.model_copy(update={"max_steps": 2})
        best_split = best_with_halvings_ms(ScalarOracle(tiny, models, WEIGHTS_AND_OPTIMIZER, two_splits), 2)
        kinds = ShardKinds(tiny, models, WEIGHTS_AND_OPTIMIZER)
        placement = beam_search(kinds, two_splits)
        split, plus = placement.cost / 1e9, refined_ms(kinds, placement, 0.2)
        assert best is not None
        assert best_split is not None
        print(
            f"{index:4d} {len(task.tables):6d} | {best:11.4f} {found:9.4f} {found / best - 1:7.2%} | {3:6d} | "
            f"{best_split:11.4f} {split:9.4f} {split / best_split - 1:7.2%} {plus:8.4f} {plus / best_split - 1:7.2%} | "
            f"{plus_on_all:8.4f} {plus_on_all / best - 1:7.2%}",
            flush=True,
        )

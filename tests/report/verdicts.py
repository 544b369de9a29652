"""Made-up results of a benchmark: tasks of very different cost, on which sharders differ by known factors."""

import numpy as np
import pandas as pd

from neuroshard_pipeline.evaluation.verdicts import VerdictParams, compare_suites

PARAMS = VerdictParams(confidence=0.95, resamples=500, least_tasks=5, least_success=0.5, seed=0)
FACTORS = {"neuroshard_plus": 0.8, "neuroshard": 0.9, "milp": 0.9, "random": 1.5}
NOISE = {"tasks": 20, "difference": 0.021, "per_task": 0.03, "other_programs": 0.01}
JUDGE = "Measured by hand."


def task_costs(count=20, factors=FACTORS, unsolved=(), is_measured=True, suite="some"):
    """`benchmark.task_costs` of one suite; `unsolved` holds pairs of task number and sharder."""
    rng = np.random.default_rng(0)
    rows = []
    for index in range(count):
        base = float(np.exp(rng.normal(1.0, 1.0)))
        for sharder, factor in factors.items():
            cost = base * factor * float(np.exp(rng.normal(0.0, 0.02)))
            solved = (index, sharder) not in unsolved
            rows.append(
                {
                    "suite": suite, "group": f"group {index % 2}", "is_measured": is_measured,
                    "task_id": f"task-{index:02d}", "sharder": sharder,
                    "solved": solved, "paper_cost_ms": 0.7 * cost if solved else np.nan,
                    "predicted_step_ms": cost if solved else np.nan,
                    "measured_step_ms": cost if solved and is_measured else np.nan,
                    "seconds": 0.5,
                    "error": None if solved else "no plan fits",
                }
            )  # fmt: skip
    return pd.DataFrame(rows)


def verdicts_of(costs, **noise):
    """`benchmark.verdicts` of the costs."""
    return compare_suites(costs, NOISE | noise, JUDGE, PARAMS)

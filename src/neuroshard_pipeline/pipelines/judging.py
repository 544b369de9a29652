"""Nodes that measure the plans of sharders, shared by the pipelines search, truth and benchmark."""

import logging
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Any

import pandas as pd
from kedro.pipeline import Node
from tqdm import tqdm

from neuroshard_pipeline.cost_models import CostModels
from neuroshard_pipeline.evaluation.plan_intervals import plan_intervals_frame
from neuroshard_pipeline.evaluation.solving_in_workers import Solve, solve_in_workers
from neuroshard_pipeline.evaluation.steps import measured_costs, noise_of
from neuroshard_pipeline.evaluation.summary import summarise
from neuroshard_pipeline.evaluation.totals import plan_costs_frame
from neuroshard_pipeline.lab.device import modelled_device
from neuroshard_pipeline.measurement import PRELOAD, RecordingParams, TopologyParams
from neuroshard_pipeline.measurement.costs import Records
from neuroshard_pipeline.measurement.modelled import require_device
from neuroshard_pipeline.pipelines.params import ContestParams
from neuroshard_pipeline.search.models import check_hardware
from neuroshard_pipeline.search.plan import Plan
from neuroshard_pipeline.sharders.base import SharderSettings
from neuroshard_pipeline.sharders.registry import Solutions, solve_all
from neuroshard_pipeline.tables.frames import tasks_from_frame
from neuroshard_pipeline.tables.task import ShardingTask
from neuroshard_pipeline.torchrec_bridge.truth import judge
from neuroshard_pipeline.torchrec_bridge.truth.params import JudgeParams
from neuroshard_pipeline.workers import Outcome, WorkerParams, map_items

_LOGGER = logging.getLogger(__name__)

Plans = tuple[Plan, ...]

#: Maps names inside a namespaced pipeline to the parameters of modelled hardware.
HARDWARE_PARAMETERS = {"params:recording": "params:recording", "params:topology": "params:topology"}


def solve_tasks(
    tasks: pd.DataFrame, models: CostModels, contest: ContestParams, settings: SharderSettings, executor: WorkerParams
) -> tuple[Plans, pd.DataFrame]:
    """Solve every task with every sharder; return the plans, and the duration and any error of every attempt."""
    solve = partial(solve_all, sharder_names=contest.sharders, models=models, settings=settings, seed=contest.seed)

    def run(solve: Solve, left: Sequence[Sequence[ShardingTask]]) -> Iterable[Outcome[Solutions]]:
        outcomes = map_items(solve, left, executor, PRELOAD)
        return tqdm(outcomes, desc="search", unit=" tasks", total=len(left), disable=None)

    solutions = solve_in_workers(solve, tasks_from_frame(tasks), contest.sharders, run)
    return solutions.plans, solutions.attempts


def measure_steps(
    plans: Sequence[Plan], models: CostModels, params: JudgeParams, done: Records
) -> Iterator[dict[str, pd.DataFrame]]:
    """Measure the plans that `done` has no record of; Kedro saves every record as it is yielded.

    The cost models must be for the kind of device that the ranks have.
    """
    if params.judge == "torchrec":
        check_hardware(models, params.compute_device)
        if problem := judge.other_network(plans, models.comm, params):
            _LOGGER.warning("%s", problem)
    for key, record in judge.measure_missing(
        plans, params, done, lambda groups: tqdm(groups, desc="measure steps", unit=" tasks", disable=None)
    ):
        yield {key: record}


def reduce_steps(
    plans: Sequence[Plan], records: Records, params: JudgeParams, recording: RecordingParams, topology: TopologyParams
) -> tuple[pd.DataFrame, dict[str, Any]]:
    """Measured costs of plans by rank, and the noise of the measurement; modelled costs if the judge is the lab."""
    steps = judge.recorded_steps(plans, params, records)
    noise = noise_of(steps, params.quantile)
    if params.judge == "lab":
        return judge.modelled_costs(plans, modelled_device(require_device(recording)), topology.network), noise
    return measured_costs(steps, plans, params.quantile), noise


def compare_sharders(
    plan_costs: pd.DataFrame,
    attempts: pd.DataFrame,
    intervals: pd.DataFrame,
    noise: dict[str, Any],
    params: JudgeParams,
) -> dict[str, Any]:
    """Compare the sharders on the tasks that they solved, and state where the costs come from."""
    return summarise(plan_costs, attempts, intervals, noise, judge.judge_text(params, plan_costs))


def solving_node() -> Node:
    """`tasks` → `solved_plans`, `attempts`."""
    inputs = ["tasks", "models", "params:contest", "sharder_settings", "params:executor"]
    return Node(solve_tasks, inputs, ["solved_plans", "attempts"], name="solve_tasks")


def measuring_nodes(plans: str) -> list[Node]:
    """The dataset `plans` → `step_records` → `measured_costs`, `noise`; a restarted run keeps the records."""
    return [
        Node(
            measure_steps, [plans, "models", "params:steps", "step_records_done"], "step_records", name="measure_steps"
        ),
        Node(
            reduce_steps,
            [plans, "step_records", "params:steps", *HARDWARE_PARAMETERS],
            ["measured_costs", "noise"],
            name="reduce_steps",
        ),
    ]


def comparing_nodes(plans: str, attempts: str = "attempts") -> list[Node]:
    """The datasets `plans` and `attempts`, and the measured costs → `plan_costs`, `plan_intervals`, `summary`."""
    return [
        Node(plan_costs_frame, [plans, "measured_costs"], "plan_costs", name="tabulate_costs"),
        Node(plan_intervals_frame, [plans, "models"], "plan_intervals", name="predict_intervals"),
        Node(
            compare_sharders,
            ["plan_costs", attempts, "plan_intervals", "noise", "params:steps"],
            "summary",
            name="compare_sharders",
        ),
    ]

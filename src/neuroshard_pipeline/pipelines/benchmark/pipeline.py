"""The benchmark of all sharders as a Kedro pipeline."""

from kedro.pipeline import Node, Pipeline

from neuroshard_pipeline.evaluation.plan_frames import plans_frame
from neuroshard_pipeline.evaluation.solving import BenchmarkJobs, gather, plans_to_measure
from neuroshard_pipeline.evaluation.suite_params import SuiteSettings
from neuroshard_pipeline.evaluation.suites import draw_suites
from neuroshard_pipeline.evaluation.totals import plan_costs_frame
from neuroshard_pipeline.evaluation.verdicts import compare_suites, task_costs
from neuroshard_pipeline.pipelines.benchmark import nodes
from neuroshard_pipeline.pipelines.judging import HARDWARE_PARAMETERS, measuring_nodes
from neuroshard_pipeline.pipelines.shared import SEARCH_PARAMETERS, TRAINED_MODELS, models_node, sharder_settings_node
from neuroshard_pipeline.report import benchmark_table
from neuroshard_pipeline.sharders.policies.policy import Policies
from neuroshard_pipeline.torchrec_bridge.truth.judge import judge_text

#: Maps every learned sharder to its trained policy, which loads as None if no run has trained it.
POLICIES = {"autoshard": "policies.autoshard", "dreamshard": "policies.dreamshard"}
SUITES = [
    f"params:{name}"
    for name in (
        "suites", "pool", "paper", "tight", "scale", "public", "giant_narrow", "many_tiny", "several_hosts",
        "sequences", "memory",
    )
]  # fmt: skip
JOBS = ["tasks", "params:contest", "models", "sharder_settings", "trained_policies"]

SOLVING = [
    models_node(),
    sharder_settings_node(),
    Node(Policies, list(POLICIES), "trained_policies", name="pair_policies"),
    Node(SuiteSettings, SUITES, "suite_settings", name="set_up_suites"),
    Node(draw_suites, ["suite_settings", "models"], "tasks", name="draw_tasks"),
    Node(BenchmarkJobs.of, JOBS, "jobs", name="list_jobs"),
    Node(nodes.solve, ["jobs", "params:executor", "solve_records_done"], "solve_records", name="solve"),
    Node(gather, ["jobs", "solve_records"], ["solved_plans", "attempts"], name="gather_plans"),
    Node(plans_frame, "solved_plans", "plans", name="tabulate_plans"),
]
MEASURING = [
    Node(plans_to_measure, ["solved_plans", "tasks"], "chosen_plans", name="choose_measured"),
    *measuring_nodes("chosen_plans"),
    Node(plan_costs_frame, ["solved_plans", "measured_costs"], "plan_costs", name="tabulate_costs"),
]
COMPARING = [
    Node(task_costs, ["tasks", "attempts", "plan_costs"], "task_costs", name="tabulate_task_costs"),
    Node(judge_text, ["params:steps", "plan_costs"], "judge", name="name_judge"),
    Node(compare_suites, ["task_costs", "noise", "judge", "params:verdicts"], "verdicts", name="compare_sharders"),
    Node(benchmark_table, "verdicts", "table", name="write_table"),
]


def create_pipeline() -> Pipeline:
    """Suites of tasks, cost models and policies → plans of every sharder → measured costs → verdicts and a text."""
    return Pipeline(
        [*SOLVING, *MEASURING, *COMPARING],
        namespace="benchmark",
        inputs={**TRAINED_MODELS, **POLICIES},
        parameters={**SEARCH_PARAMETERS, **HARDWARE_PARAMETERS},  # sharders have the search stage's settings
        tags="benchmark",
    )

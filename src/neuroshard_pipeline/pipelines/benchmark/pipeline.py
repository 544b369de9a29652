"""The benchmark of all sharders as a Kedro pipeline."""

from kedro.pipeline import Node, Pipeline

from neuroshard_pipeline.pipelines.benchmark import nodes
from neuroshard_pipeline.pipelines.plan_measurement import (
    MEASURE_PARAMETERS,
    RECORDS,
    campaigns_node,
    measuring_nodes,
)
from neuroshard_pipeline.pipelines.shared import (
    SEARCH_PARAMETERS,
    TRAINED_MODELS,
    models_node,
    sharder_settings_node,
)

POLICIES = {"autoshard": "policies.autoshard", "dreamshard": "policies.dreamshard"}
SUITES = [f"params:{name}" for name in ("suites", "pool", "paper", "tight", "scale", "public")]


def create_pipeline() -> Pipeline:
    """Suites of tasks and cost models → plans of every sharder → measured costs → verdicts, table, page."""
    return Pipeline(
        [*_solving(), *_measuring(), *_comparing()],
        namespace="benchmark",
        inputs={"lineage": "lineage", **TRAINED_MODELS, **POLICIES},
        # The sharders have the settings of the search stage, and plans are measured with the ids of the measure stage.
        parameters={**SEARCH_PARAMETERS, **MEASURE_PARAMETERS},
        tags="benchmark",
    )


def _solving() -> list[Node]:
    return [
        models_node(),
        sharder_settings_node(),
        Node(nodes.pair_policies, list(POLICIES), "trained_policies", name="pair_policies"),
        Node(nodes.draw_tasks, [*SUITES, "params:memory"], "tasks", name="draw_tasks"),
        Node(
            nodes.list_jobs,
            ["tasks", "params:contest", "models", "sharder_settings", "trained_policies"],
            "jobs",
            name="list_jobs",
        ),
        Node(nodes.solve, ["jobs", "params:executor", "solve_records_done"], "solve_records", name="solve"),
        Node(nodes.gather_plans, ["jobs", "solve_records"], "solutions", name="gather_plans"),
        Node(nodes.tabulate_plans, "solutions", ["plans", "attempts"], name="tabulate_plans"),
    ]


def _measuring() -> list[Node]:
    return [
        campaigns_node(),
        Node(nodes.choose_measured, ["solutions", "tasks", "params:contest"], "chosen_plans", name="choose_measured"),
        Node(nodes.plan_measurement, ["chosen_plans", "campaigns"], "measurement", name="plan_measurement"),
        *measuring_nodes(),
        Node(
            nodes.tabulate_costs,
            ["solutions", "chosen_plans", "measurement", *RECORDS],
            ["plan_costs", "hardware"],
            name="tabulate_costs",
        ),
    ]


def _comparing() -> list[Node]:
    return [
        Node(
            nodes.compare_sharders,
            ["tasks", "attempts", "plan_costs", "params:verdicts"],
            ["task_costs", "verdicts"],
            name="compare_sharders",
        ),
        Node(nodes.report, ["verdicts", "task_costs", "hardware", "lineage"], ["table", "report"], name="report"),
    ]

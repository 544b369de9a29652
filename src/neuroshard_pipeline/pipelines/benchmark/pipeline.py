"""Every sharder on every suite: draw, solve, measure, judge, report."""

from kedro.pipeline import Node, Pipeline

from neuroshard_pipeline.pipelines.benchmark import nodes
from neuroshard_pipeline.pipelines.plan_measurement import (
    CAMPAIGNS,
    PROTOCOL,
    SHARED,
    measuring_nodes,
    state_measurement,
)

MODELS = ["compute_cost_model", "comm_cost_model"]
POLICIES = ["autoshard", "dreamshard"]
SEARCH = ["params:neuroshard", "params:neuroshard_plus", "params:memory", "params:rivals"]
SUITES = [f"params:{name}" for name in ("suites", "pool", "paper", "tight", "scale", "public")]


def create_pipeline() -> Pipeline:
    """Suites + cost models → plans of every sharder → measured costs → verdicts, table, page."""
    return Pipeline(
        [*_solving(), *_measuring(), *_judging()],
        namespace="benchmark",
        inputs={
            "lineage": "lineage",
            **{name: f"train.{name}" for name in MODELS},
            **{name: f"policies.{name}" for name in POLICIES},
        },
        # Searches and backends are those of the search stage; ids are those that models were trained on.
        parameters={
            **{name: name.replace("params:", "params:search.") for name in SEARCH},
            **SHARED,
        },
        tags="benchmark",
    )


def _solving() -> list[Node]:
    return [
        Node(nodes.draw_tasks, [*SUITES, "params:memory"], "tasks", name="draw_tasks"),
        Node(
            nodes.state_contest,
            ["tasks", *MODELS, *POLICIES, "params:contest", *SEARCH],
            "stated_contest",
            name="state_contest",
        ),
        Node(nodes.solve, ["stated_contest", "params:executor", "solve_shards_done"], "solve_shards", name="solve"),
        Node(nodes.gather_plans, ["stated_contest", "solve_shards"], "solutions", name="gather_plans"),
        Node(nodes.tabulate_plans, "solutions", ["plans", "attempts"], name="tabulate_plans"),
    ]


def _measuring() -> list[Node]:
    return [
        Node(
            nodes.choose_measured,
            ["solutions", "tasks", "params:contest"],
            ["chosen_plans", "measured_plans"],
            name="choose_measured",
        ),
        Node(state_measurement, PROTOCOL, "measurement", name="state_measurement"),
        *measuring_nodes(),
        Node(
            nodes.tabulate_costs,
            ["solutions", "chosen_plans", "measured_plans", "measurement", *CAMPAIGNS],
            ["plan_costs", "hardware"],
            name="tabulate_costs",
        ),
    ]


def _judging() -> list[Node]:
    return [
        Node(
            nodes.judge_sharders,
            ["tasks", "attempts", "plan_costs", "params:judge"],
            ["task_costs", "judgement"],
            name="judge_sharders",
        ),
        Node(nodes.report, ["judgement", "task_costs", "hardware", "lineage"], ["table", "report"], name="report"),
    ]

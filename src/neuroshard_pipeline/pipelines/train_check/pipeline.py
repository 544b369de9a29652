"""Trains one model under the plans of several sharders, with one process per rank."""

from kedro.pipeline import Node, Pipeline

from neuroshard_pipeline.pipelines.shared import SEARCH_PARAMETERS, TRAINED_MODELS, models_node, sharder_settings_node
from neuroshard_pipeline.pipelines.train_check import nodes
from neuroshard_pipeline.torchrec_bridge.train_check.problem import state_problem
from neuroshard_pipeline.torchrec_bridge.train_check.summary import summarise_training


def create_pipeline() -> Pipeline:
    """Tables + cost models → plans → steps of training under each plan → comparison of speeds and losses."""
    stage = [
        models_node(),
        sharder_settings_node(),
        Node(
            state_problem,
            ["sharding_tasks", "params:task", "params:training"],
            ["sharding_task", "batches"],
            name="state_task",
        ),
        Node(
            nodes.solve_task,
            ["sharding_task", "models", "sharder_settings", "params:contest", "params:training"],
            "solutions",
            name="solve_task",
        ),
        Node(nodes.tabulate_plans, "solutions", "plans", name="tabulate_plans"),
        Node(nodes.train, ["solutions", "batches", "params:training"], "steps", name="train"),
        Node(summarise_training, ["steps", "solutions", "params:training"], "summary", name="compare_plans"),
        Node(nodes.tabulate_speeds, "summary", "table", name="tabulate_speeds"),
    ]
    return Pipeline(
        stage,
        namespace="train_check",
        inputs={"sharding_tasks": "augment.sharding_tasks"} | TRAINED_MODELS,
        parameters=SEARCH_PARAMETERS,
        tags="train_check",
    )

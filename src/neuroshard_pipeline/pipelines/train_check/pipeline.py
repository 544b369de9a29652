"""Train one model under the plans of several sharders, between real processes."""

from kedro.pipeline import Node, Pipeline

from neuroshard_pipeline.pipelines.train_check import nodes

MODELS = ["compute_cost_model", "comm_cost_model"]
SEARCH = ["params:neuroshard", "params:neuroshard_plus", "params:memory", "params:rivals"]


def create_pipeline() -> Pipeline:
    """Tables + cost models → plans → steps of training under each → speeds and losses side by side."""
    stage = [
        Node(nodes.state_task, ["sharding_tasks", "params:task"], ["sharding_task", "batches"], name="state_task"),
        Node(
            nodes.solve_task,
            ["sharding_task", *MODELS, "params:contest", *SEARCH, "params:training"],
            "solutions",
            name="solve_task",
        ),
        Node(nodes.tabulate_plans, "solutions", "plans", name="tabulate_plans"),
        Node(nodes.train, ["solutions", "batches", "params:training"], "steps", name="train"),
        Node(nodes.compare_plans, ["steps", "solutions", "params:training"], "summary", name="compare_plans"),
        Node(nodes.tabulate_speeds, "summary", "table", name="tabulate_speeds"),
    ]
    return Pipeline(
        stage,
        namespace="train_check",
        inputs={"sharding_tasks": "augment.sharding_tasks", **{name: f"train.{name}" for name in MODELS}},
        parameters={name: name.replace("params:", "params:search.") for name in SEARCH},
        tags="train_check",
    )

"""The search stage as a Kedro pipeline."""

from kedro.pipeline import Node, Pipeline

from neuroshard_pipeline.pipelines.search import nodes

MODELS = ["compute_cost_model", "comm_cost_model"]


def create_pipeline() -> Pipeline:
    """Tasks → plans of every sharder → measured costs, summary, TorchRec plans."""
    stage = [
        Node(
            nodes.solve_tasks,
            [
                "sharding_tasks",
                *MODELS,
                "params:contest",
                "params:neuroshard",
                "params:neuroshard_plus",
                "params:memory",
            ],
            "solutions",
            name="solve_tasks",
        ),
        Node(nodes.tabulate_plans, "solutions", ["plans", "attempts"], name="tabulate_plans"),
        Node(
            nodes.measure_plans,
            ["solutions", "params:compute", "params:comm", "params:seed", "params:recording", "params:topology"],
            "plan_costs",
            name="measure_plans",
        ),
        Node(nodes.compare_sharders, ["plan_costs", "attempts"], "summary", name="compare_sharders"),
        Node(
            nodes.export_torchrec_plans,
            ["solutions", "params:torchrec"],
            "torchrec_plans",
            name="export_torchrec_plans",
        ),
    ]
    return Pipeline(
        stage,
        namespace="search",
        inputs={"sharding_tasks": "augment.sharding_tasks", **{name: f"train.{name}" for name in MODELS}},
        # The ids of a table must be the same when its plans are measured as when the models were trained.
        parameters={
            "params:seed": "params:measure.seed",
            "params:recording": "params:recording",
            "params:topology": "params:topology",
        },
        tags="search",
    )

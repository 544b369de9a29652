"""The search stage as a Kedro pipeline."""

from kedro.pipeline import Node, Pipeline

from neuroshard_pipeline.pipelines.search import nodes

MODELS = ["train.compute_cost_model", "train.comm_cost_model"]


def create_pipeline() -> Pipeline:
    """Tasks → plans of every sharder → measured costs, summary, TorchRec plans."""
    stage = [
        Node(
            nodes.solve_tasks,
            ["augment.sharding_tasks", *MODELS, "params:sharders", "params:neuroshard"],
            ["plans", "predicted_costs", "attempts"],
            name="solve_tasks",
        ),
        Node(
            nodes.measure_plans,
            ["plans", "predicted_costs", "augment.sharding_tasks", "params:measure_compute", "params:measure_comm"],
            "plan_costs",
            name="measure_plans",
        ),
        Node(nodes.summarise, ["plan_costs", "attempts"], "summary", name="summarise"),
        Node(
            nodes.export_torchrec_plans,
            ["plans", "augment.sharding_tasks", "params:torchrec"],
            "torchrec_plans",
            name="export_torchrec_plans",
        ),
    ]
    return Pipeline(stage, namespace="search", inputs={"augment.sharding_tasks", *MODELS}, tags="search")

"""Plan one user-given task with the newest cost models, without measuring anything."""

from kedro.pipeline import Node, Pipeline

from neuroshard_pipeline.pipelines.plan import nodes

MODELS = ["train.compute_cost_model", "train.comm_cost_model"]


def create_pipeline() -> Pipeline:
    """Table file → plan, its explanation in words, its TorchRec form."""
    stage = [
        Node(nodes.read_task, "params:task", "sharding_task", name="read_task"),
        Node(
            nodes.search_plan,
            ["sharding_task", *MODELS, "params:task", "params:neuroshard", "params:neuroshard_plus"],
            "found",
            name="search_plan",
        ),
        Node(nodes.plan_to_frame, "found", "plan", name="plan_to_frame"),
        Node(nodes.explain, "found", "explanation", name="explain"),
        Node(nodes.export_torchrec_plan, ["found", "params:torchrec"], "torchrec_plan", name="export_torchrec_plan"),
    ]
    shared = {"params:neuroshard": "params:search.neuroshard", "params:neuroshard_plus": "params:search.neuroshard_plus",
              "params:torchrec": "params:search.torchrec"}
    return Pipeline(stage, namespace="plan", inputs=set(MODELS), parameters=shared, tags="plan")

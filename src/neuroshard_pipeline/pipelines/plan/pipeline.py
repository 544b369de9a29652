"""Plan one user-given task with the newest cost models, without measuring anything."""

from kedro.pipeline import Node, Pipeline

from neuroshard_pipeline.pipelines.plan import nodes

MODELS = ["train.compute_cost_model", "train.comm_cost_model"]
SEARCH = ["params:search.neuroshard", "params:search.neuroshard_plus", "params:search.memory"]


def create_pipeline() -> Pipeline:
    """Table file → plan, its explanation in words, its TorchRec form."""
    stage = [
        Node(nodes.read_task, "params:task", "sharding_task", name="read_task"),
        Node(
            nodes.search_plan, ["sharding_task", *MODELS, "params:task", *SEARCH], "found", name="search_plan"
        ),
        Node(nodes.tabulate_plan, "found", "plan", name="tabulate_plan"),
        Node(nodes.explain_plan, "found", "explanation", name="explain_plan"),
        Node(
            nodes.export_torchrec_plan,
            ["found", "params:search.torchrec"],
            "torchrec_plan",
            name="export_torchrec_plan",
        ),
    ]
    return Pipeline(
        stage,
        namespace="plan",
        inputs=set(MODELS),
        parameters={*SEARCH, "params:search.torchrec"},
        tags="plan",
    )

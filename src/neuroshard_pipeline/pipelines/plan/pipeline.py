"""Plan one user-given task with the newest cost models, without measuring anything."""

from kedro.pipeline import Node, Pipeline

from neuroshard_pipeline.pipelines.plan import nodes

MODELS = ["compute_cost_model", "comm_cost_model"]
SEARCH = ["params:neuroshard", "params:neuroshard_plus", "params:memory", "params:rivals"]


def create_pipeline() -> Pipeline:
    """Table file → plan, its explanation in words, its TorchRec form."""
    stage = [
        Node(nodes.read_task, "params:task", "sharding_task", name="read_task"),
        Node(
            nodes.search_plan,
            ["sharding_task", *MODELS, "params:task", *SEARCH],
            ["found", "order_in_words"],
            name="search_plan",
        ),
        Node(nodes.tabulate_plan, "found", "plan", name="tabulate_plan"),
        Node(nodes.explain_plan, ["found", "order_in_words"], "explanation", name="explain_plan"),
        Node(
            nodes.export_torchrec_plan,
            ["found", "params:torchrec"],
            "torchrec_plan",
            name="export_torchrec_plan",
        ),
    ]
    return Pipeline(
        stage,
        namespace="plan",
        inputs={name: f"train.{name}" for name in MODELS},
        parameters={name: name.replace("params:", "params:search.") for name in (*SEARCH, "params:torchrec")},
        tags="plan",
    )

"""Train the learned rivals on the newest cost models."""

from kedro.pipeline import Node, Pipeline

from neuroshard_pipeline.pipelines.train_policies import nodes
from neuroshard_pipeline.sharders.policies.networks import NETWORKS

MODELS = ["compute_cost_model", "comm_cost_model"]
TRAIN = {"autoshard": nodes.train_autoshard, "dreamshard": nodes.train_dreamshard}


def create_pipeline() -> Pipeline:
    """Cost models → training tasks → policies and how they learned."""
    stage = [
        Node(nodes.draw_tasks, ["params:pool", "params:sharding_tasks", "params:tasks"], "drawn", name="draw_tasks"),
        *(
            Node(
                TRAIN[kind],
                ["drawn", *MODELS, "params:memory", f"params:{kind}", "lineage"],
                [kind, f"{kind}_progress"],
                name=f"train_{kind}",
            )
            for kind in NETWORKS
        ),
        Node(
            nodes.report_progress,
            [f"{kind}_progress" for kind in NETWORKS],
            ["progress", "progress_figure"],
            name="report_progress",
        ),
    ]
    return Pipeline(
        stage,
        namespace="policies",
        inputs={"lineage": "lineage", **{name: f"train.{name}" for name in MODELS}},
        parameters={
            "params:pool": "params:augment.pool",
            "params:sharding_tasks": "params:augment.sharding_tasks",
            "params:memory": "params:search.memory",
        },
        tags="train_policies",
    )

"""Trains the policies of AutoShard and DreamShard, two learned sharders, on predictions of the newest cost models."""

from kedro.pipeline import Node, Pipeline

from neuroshard_pipeline.pipelines.shared import TRAINED_MODELS, models_node
from neuroshard_pipeline.pipelines.train_policies import nodes
from neuroshard_pipeline.sharders.policies.tasks import draw_policy_tasks

TRAIN = {"autoshard": nodes.train_autoshard, "dreamshard": nodes.train_dreamshard}


def create_pipeline() -> Pipeline:
    """Training tasks and cost models → policies, and the progress of their training."""
    drawn = ["params:pool", "params:sharding_tasks", "params:tasks"]
    stage = [
        models_node(),
        Node(draw_policy_tasks, drawn, "drawn", name="draw_tasks"),
        *(
            Node(
                train,
                ["drawn", "models", "params:memory", f"params:{kind}", "lineage"],
                [kind, f"{kind}_progress"],
                name=f"train_{kind}",
            )
            for kind, train in TRAIN.items()
        ),
        Node(nodes.tabulate_progress, [f"{kind}_progress" for kind in TRAIN], "progress", name="tabulate_progress"),
    ]
    return Pipeline(
        stage,
        namespace="policies",
        inputs={"lineage": "lineage", **TRAINED_MODELS},
        parameters={
            "params:pool": "params:augment.pool",
            "params:sharding_tasks": "params:augment.sharding_tasks",
            "params:memory": "params:search.memory",
        },
        tags="train_policies",
    )

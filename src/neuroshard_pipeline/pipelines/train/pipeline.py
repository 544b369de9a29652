"""The train stage as a Kedro pipeline."""

from kedro.pipeline import Node, Pipeline

from neuroshard_pipeline.pipelines.train import nodes
from neuroshard_pipeline.pipelines.training_data import (
    FIRST_CAMPAIGN,
    REFINED,
    first_campaign_node,
    refined_samples_node,
)


def create_pipeline(refined: str = "refine.newest_") -> Pipeline:
    """Samples and costs → cost models and their accuracy on held-out samples.

    Args:
        refined: prefix of the datasets named in `REFINED`. The default selects what earlier runs of the pipeline refine
            have measured; `refine.` selects what the present run measures.
    """
    return Pipeline(
        [first_campaign_node(), refined_samples_node(), *_training(), *_merging()],
        namespace="train",
        inputs={
            **FIRST_CAMPAIGN,
            **{f"refined_{name}": f"{refined}{name}" for name in REFINED},
            "reduction_samples": "augment.reduction_samples",
            "reduction_costs": "measure.reduction_costs",
            "hardware": "measure.hardware",
            "lineage": "lineage",
        },
        tags="train",
    )


def _training() -> list[Node]:
    data = ["training_data", "is_refined"]
    return [
        Node(nodes.join_refined, ["first_campaign", "refined_samples"], data, name="join_refined"),
        Node(
            nodes.train_compute,
            [*data, "params:compute", "hardware", "lineage"],
            ["compute_cost_model", "compute_metrics", "compute_held_out"],
            name="train_compute",
        ),
        Node(
            nodes.train_comm,
            [*data, "params:comm", "hardware", "lineage"],
            ["comm_cost_model", "comm_metrics", "comm_held_out"],
            name="train_comm",
        ),
        Node(
            nodes.fit_reduction_costs,
            ["reduction_samples", "reduction_costs"],
            ["reduction_model", "reduction_metrics"],
            name="fit_reduction_costs",
        ),
        Node(
            nodes.evaluate_by_group,
            ["compute_cost_model", "training_data", "compute_held_out"],
            ["group_metrics", "judged"],
            name="evaluate_by_group",
        ),
    ]


def _merging() -> list[Node]:
    metrics = ["compute_metrics", "comm_metrics", "group_metrics"]
    return [
        Node(nodes.merge_metrics, metrics, "metrics", name="merge_metrics"),
        Node(nodes.merge_held_out, ["compute_held_out", "comm_held_out"], "held_out", name="merge_held_out"),
    ]

"""The train stage as a Kedro pipeline."""

from kedro.pipeline import Node, Pipeline

from neuroshard_pipeline.pipelines.train import nodes
from neuroshard_pipeline.torchrec_bridge.step_costs.fitting import MeasuredSteps

_STEP_FRAMES = ("step_tasks", "step_plans", "step_costs")
_DRAWN = ("table_pool", "compute_samples", "compute_sample_settings", "comm_samples", "reduction_samples")
_MEASURED = ("compute_costs", "comm_costs", "reduction_costs", "hardware", *_STEP_FRAMES)


def create_pipeline() -> Pipeline:
    """Samples and costs → cost models and their accuracy on held-out samples."""
    drawn, measured = {name: f"augment.{name}" for name in _DRAWN}, {name: f"measure.{name}" for name in _MEASURED}
    inputs = {**drawn, **measured, "lineage": "lineage"}
    return Pipeline([*_training(), *_steps(), *_merging()], namespace="train", inputs=inputs, tags="train")


def _training() -> list[Node]:
    frames = ["compute_samples", "table_pool", "compute_costs"]
    compute = [*frames, "params:compute", "compute_origin", "compute_sample_settings", "params:executor"]
    comm = ["comm_samples", "comm_costs", "params:comm", "comm_origin", "params:executor"]
    return [
        Node(nodes.provenance, ["hardware", "lineage"], ["compute_origin", "comm_origin"], name="state_provenance"),
        Node(
            nodes.train_compute,
            compute,
            ["compute_cost_model", "compute_metrics", "compute_held_out"],
            name="train_compute",
        ),
        Node(nodes.train_comm, comm, ["comm_cost_model", "comm_metrics", "comm_held_out"], name="train_comm"),
        Node(
            nodes.fit_reduction_costs,
            ["reduction_samples", "reduction_costs"],
            ["reduction_model", "reduction_metrics"],
            name="fit_reduction_costs",
        ),
        Node(
            nodes.evaluate_by_group,
            ["compute_cost_model", *frames[:2], "compute_sample_settings", frames[2], "compute_held_out"],
            ["group_metrics", "judged"],
            name="evaluate_by_group",
        ),
    ]


def _steps() -> list[Node]:
    trained = ["compute_cost_model", "comm_cost_model", "reduction_model"]
    return [
        Node(MeasuredSteps.from_frames, list(_STEP_FRAMES), "measured_steps", name="gather_steps"),
        Node(
            nodes.fit_step_costs,
            ["measured_steps", *trained, "params:modelled_steps", "hardware", "lineage"],
            ["found_step_model", "step_metrics"],
            name="fit_step_costs",
        ),
        Node(nodes.choose_step_model, "found_step_model", "step_cost_model", name="save_step_model"),
    ]


def _merging() -> list[Node]:
    metrics = ["compute_metrics", "comm_metrics", "group_metrics"]
    return [
        Node(nodes.merge_metrics, metrics, "metrics", name="merge_metrics"),
        Node(nodes.merge_held_out, ["compute_held_out", "comm_held_out"], "held_out", name="merge_held_out"),
    ]

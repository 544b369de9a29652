"""Measures samples of plans that the search chooses, and trains the cost models again on all samples."""

from kedro.pipeline import Node, Pipeline

from neuroshard_pipeline.evaluation.refinement import of_campaign
from neuroshard_pipeline.pipelines import train
from neuroshard_pipeline.pipelines.plan_measurement import MEASURE_PARAMETERS
from neuroshard_pipeline.pipelines.refine import nodes
from neuroshard_pipeline.pipelines.shared import SEARCH_PARAMETERS, TRAINED_MODELS, models_node, sharder_settings_node
from neuroshard_pipeline.pipelines.training_data import (
    FIRST_CAMPAIGN,
    REFINED,
    first_campaign_node,
    refined_samples_node,
)

#: The newest cost models under other names, because a pipeline cannot read and write the same dataset.
NEWEST_MODELS = {name: trained.replace("train.", "train.newest_") for name, trained in TRAINED_MODELS.items()}


def create_pipeline() -> Pipeline:
    """Cost models → plans and runners-up → new samples → costs → cost models trained on all samples."""
    measuring = Pipeline(
        [*_gathering(), *_measuring()],
        namespace="refine",
        inputs={
            **FIRST_CAMPAIGN,
            **NEWEST_MODELS,
            **{f"refined_{name}": f"refine.newest_{name}" for name in REFINED},
        },
        outputs={f"all_{name}": f"refine.{name}" for name in REFINED},
        parameters={
            "params:sharding_tasks": "params:augment.sharding_tasks",
            **MEASURE_PARAMETERS,
            **SEARCH_PARAMETERS,
        },
        tags="refine",
    )
    return measuring + train.create_pipeline("refine.")


def _gathering() -> list[Node]:
    return [
        models_node(),
        sharder_settings_node(),
        Node(nodes.state_campaigns, list(MEASURE_PARAMETERS), "campaigns", name="state_campaigns"),
        first_campaign_node(),
        refined_samples_node(),
        Node(of_campaign, ["refined_samples", "first_campaign"], "known_samples", name="select_known"),
    ]


def _measuring() -> list[Node]:
    return [
        Node(
            nodes.draw_tasks,
            ["table_pool", "params:sharding_tasks", "params:round", "known_samples"],
            "tasks",
            name="draw_tasks",
        ),
        Node(
            nodes.find_new_samples,
            ["tasks", "models", "params:round", "sharder_settings", "first_campaign", "known_samples"],
            "new_samples",
            name="find_new_samples",
        ),
        Node(
            nodes.measure,
            ["new_samples", "campaigns", "first_campaign", "params:anchors"],
            "measured_samples",
            name="measure",
        ),
        Node(
            nodes.append,
            ["known_samples", "measured_samples", "first_campaign"],
            {name: f"all_{name}" for name in REFINED},
            name="append",
        ),
    ]

"""The node that gathers the first campaign: the samples of the augment stage with the costs of the measure stage."""

from kedro.pipeline import Node

from neuroshard_pipeline.evaluation.measured_samples import MeasuredSamples

#: Datasets of the first campaign, by their names inside a namespaced pipeline, in the order of `MeasuredSamples`.
FIRST_CAMPAIGN = {
    "table_pool": "augment.table_pool",
    "compute_samples": "augment.compute_samples",
    "compute_sample_settings": "augment.compute_sample_settings",
    "compute_costs": "measure.compute_costs",
    "comm_samples": "augment.comm_samples",
    "comm_costs": "measure.comm_costs",
}


def first_campaign_node() -> Node:
    """Datasets of the first campaign → `first_campaign`."""
    return Node(MeasuredSamples, list(FIRST_CAMPAIGN), "first_campaign", name="gather_first_campaign")

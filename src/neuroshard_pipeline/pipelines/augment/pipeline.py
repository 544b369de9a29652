"""The augment stage as a Kedro pipeline."""

from kedro.pipeline import Node, Pipeline

from neuroshard_pipeline.augment.comm_draws import comm_samples
from neuroshard_pipeline.augment.reduction_draws import reduction_samples
from neuroshard_pipeline.pipelines.augment import nodes

#: Table sets in data/01_raw, in the order of the arguments of `gather_public_tables`.
PUBLIC_SETS = ("mlperf_dlrm_v2", "criteo_kaggle", "hugectr_t510")


def create_pipeline() -> Pipeline:
    """Public tables → table pool → samples of lookups, all-to-alls and reductions, and sharding tasks."""
    drawing = ["params:compute_samples", "params:variation", "params:varied_samples", "params:recording"]
    stage = [
        Node(nodes.gather_public_tables, list(PUBLIC_SETS), "public_tables", name="gather_public_tables"),
        Node(
            nodes.provide_table_pool,
            ["public_tables", "params:pool", "params:variation", "params:recording"],
            "table_pool",
            name="provide_table_pool",
        ),
        Node(
            nodes.provide_compute_samples,
            ["table_pool", "public_tables", *drawing],
            ["compute_samples", "compute_sample_settings"],
            name="provide_compute_samples",
        ),
        Node(comm_samples, ["table_pool", "params:comm_samples"], "comm_samples", name="draw_comm_samples"),
        Node(reduction_samples, "params:reduction_samples", "reduction_samples", name="draw_reduction_samples"),
        Node(
            nodes.draw_sharding_tasks,
            ["table_pool", "mlperf_dlrm_v2", "params:sharding_tasks", "params:mlperf_task"],
            "sharding_tasks",
            name="draw_sharding_tasks",
        ),
    ]
    return Pipeline(
        stage, namespace="augment", inputs=set(PUBLIC_SETS), parameters={"params:recording"}, tags="augment"
    )

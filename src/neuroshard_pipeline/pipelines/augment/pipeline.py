"""The augment stage as a Kedro pipeline."""

from kedro.pipeline import Node, Pipeline

from neuroshard_pipeline.pipelines.augment import nodes


def create_pipeline() -> Pipeline:
    """Table pool → compute samples, communication samples, sharding tasks."""
    stage = [
        Node(nodes.provide_table_pool, ["params:pool", "params:recording"], "table_pool", name="provide_table_pool"),
        Node(
            nodes.compare_reuse_with_published,
            ["table_pool", "params:pool"],
            "reuse_comparison",
            name="compare_reuse_with_published",
        ),
        Node(
            nodes.provide_compute_samples,
            ["table_pool", "params:compute_samples", "params:recording"],
            "compute_samples",
            name="provide_compute_samples",
        ),
        Node(nodes.draw_comm_samples, ["table_pool", "params:comm_samples"], "comm_samples", name="draw_comm_samples"),
        Node(
            nodes.draw_sharding_tasks,
            ["table_pool", "mlperf_dlrm_v2", "params:sharding_tasks", "params:mlperf_task"],
            "sharding_tasks",
            name="draw_sharding_tasks",
        ),
    ]
    return Pipeline(
        stage, namespace="augment", inputs={"mlperf_dlrm_v2"}, parameters={"params:recording"}, tags="augment"
    )

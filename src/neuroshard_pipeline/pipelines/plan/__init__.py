"""Makes a plan for your own tables: `kedro run --pipeline plan --params plan.task.tables=my_tables.csv`."""

from neuroshard_pipeline.pipelines.plan.pipeline import create_pipeline

__all__ = ["create_pipeline"]

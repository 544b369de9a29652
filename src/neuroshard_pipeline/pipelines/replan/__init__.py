"""Plans from the plan that runs: `kedro run --pipeline replan --params replan.present.path=plan.json`."""

from neuroshard_pipeline.pipelines.replan.pipeline import create_pipeline

__all__ = ["create_pipeline"]

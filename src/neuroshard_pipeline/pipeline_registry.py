"""The registered pipelines."""

import warnings

from kedro.pipeline import Pipeline

from neuroshard_pipeline.pipelines.augment import pipeline as augment
from neuroshard_pipeline.pipelines.benchmark import pipeline as benchmark
from neuroshard_pipeline.pipelines.measure import pipeline as measure
from neuroshard_pipeline.pipelines.plan import pipeline as plan
from neuroshard_pipeline.pipelines.replan import pipeline as replan
from neuroshard_pipeline.pipelines.report import pipeline as report
from neuroshard_pipeline.pipelines.search import pipeline as search
from neuroshard_pipeline.pipelines.train import pipeline as train
from neuroshard_pipeline.pipelines.train_check import pipeline as train_check
from neuroshard_pipeline.pipelines.train_policies import pipeline as train_policies
from neuroshard_pipeline.pipelines.truth import pipeline as truth


def register_pipelines() -> dict[str, Pipeline]:
    """All pipelines by the name that `kedro run --pipeline` uses.

    They are imported explicitly, because some are composed of others, and Kedro's `find_pipelines` would import only
    the requested one.
    """
    # Kedro warns about every dot in a dataset name, even about the dots that its own namespaces add.
    warnings.filterwarnings("ignore", message=r"\s*One or more dataset names contain '\.'")
    stages = {
        "augment": augment.create_pipeline(),
        "measure": measure.create_pipeline(),
        "train": train.create_pipeline(),
        "search": search.create_pipeline() + report.create_pipeline(),
    }
    pretrain = stages["augment"] + stages["measure"] + stages["train"]
    return {
        **stages,
        "pretrain": pretrain,
        "plan": plan.create_pipeline(),
        "advise": plan.create_advice(),
        "replan": replan.create_pipeline(),
        "train_check": train_check.create_pipeline(),
        "train_policies": train_policies.create_pipeline(),
        "truth": truth.create_pipeline(),
        "benchmark": benchmark.create_pipeline(),
        "__default__": pretrain + stages["search"],
    }

"""The registered pipelines."""

import warnings

from kedro.pipeline import Pipeline

from neuroshard_pipeline.pipelines import (
    augment,
    benchmark,
    measure,
    plan,
    replan,
    report,
    search,
    train,
    train_check,
    train_policies,
    truth,
)


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
        "replan": replan.create_pipeline(),
        "train_check": train_check.create_pipeline(),
        "train_policies": train_policies.create_pipeline(),
        "truth": truth.create_pipeline(),
        "benchmark": benchmark.create_pipeline(),
        "__default__": pretrain + stages["search"],
    }

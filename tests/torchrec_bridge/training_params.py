"""Small models for tests of the training check."""

from __future__ import annotations

from neuroshard_pipeline.torchrec_bridge.train_check.params import DhenParams, TrainingParams

PARAMS = TrainingParams(
    backend="gloo",
    models=("dlrm", "dhen"),
    dense=("ddp", "fsdp2", "hybrid"),
    trainer="plain",
    networks=(),
    dense_layers=(16, 8),
    cross_layers=2,
    cross_rank=4,
    over_layers=(16,),
    dhen=DhenParams(layers=2, width=8, outputs=2, heads=2),
    learning_rate=0.8,
    rounds=2,
    warmup_steps=0,
    steps_per_round=1,
    most_plans_held=9,
    quantile=0.25,
    loss_tolerance=1e-3,
    loss_steps=16,
    threads=1,
    timeout_s=100,
    seed=0,
)

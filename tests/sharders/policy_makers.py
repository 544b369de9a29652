"""Policies of the learned sharders, for tests: untrained ones, and parameters of a training that takes seconds."""

import numpy as np

from neuroshard_pipeline.sharders.policies.episode import RANK_FEATURES, TABLE_FEATURES
from neuroshard_pipeline.sharders.policies.networks import NETWORKS
from neuroshard_pipeline.sharders.policies.params import PolicyTrainParams
from neuroshard_pipeline.sharders.policies.policy import Policies, Policy

KINDS = tuple(NETWORKS)

QUICK = PolicyTrainParams(
    reward="cost",
    hidden=16,
    steps=60,
    tasks_per_step=2,
    rollouts=12,
    learning_rate=0.01,
    entropy_bonus=0.003,
    validate_every=10,
    seed=0,
)


def untrained(kind: str, seed: int = 0) -> Policy:
    """A policy with random weights, in float32 like the weights of trained policies.

    The weights are small, so that no rank has nearly all the probability, and rollouts that draw ranks differ.
    """
    rng = np.random.default_rng(seed)
    shapes = NETWORKS[kind].shapes(len(TABLE_FEATURES), len(RANK_FEATURES), 8)
    weights = {name: rng.normal(size=shape, scale=0.3).astype(np.float32) for name, shape in shapes.items()}
    return Policy(kind, weights, np.zeros(len(TABLE_FEATURES)), np.ones(len(TABLE_FEATURES)), {"run_id": "test"})


def untrained_policies() -> Policies:
    return Policies(**{kind: untrained(kind) for kind in KINDS})

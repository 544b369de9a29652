"""What ranks run in the tests; a module of its own, so that their processes can import it."""

from __future__ import annotations

from torchrec_bridge import training

from neuroshard_pipeline.torchrec_bridge.structures import to_torchrec


def losses_under_random_plan(rank: int, world_size: int, kind: str, steps: int) -> list[tuple[float, float]]:
    """Losses per step under a random plan, sharded and unsharded."""
    model = training.built(kind)
    plan = training.random_plan(model, world_size)
    return training.train_both(rank, world_size, model, to_torchrec(plan, model, compute_device="cpu"), steps)

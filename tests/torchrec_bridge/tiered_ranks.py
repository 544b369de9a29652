"""Functions that ranks run: training with tiers beside the same training without sharding, and resumed training."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torchrec.optim.optimizers import in_backward_optimizer_filter
from torchrec_bridge.tiered_sequences import (
    LEARNING_RATE,
    OPTIMIZERS,
    SAMPLES_PER_RANK,
    STEPS,
    Case,
    TieredModel,
    drawn_ids,
    module_of,
    summed,
    tiered_model,
)
from torchrec_bridge.tiered_states import (
    check_cold_rows_are_awaited_last,
    check_first_weights,
    check_optimizer_state,
    check_state,
)
from traffic import Collective, recorded_traffic

from neuroshard_pipeline.errors import PlanError
from neuroshard_pipeline.torchrec_bridge.tiered import (
    RankGroups,
    load_optimizer_state,
    optimizer_state,
    rank_groups,
)
from neuroshard_pipeline.torchrec_bridge.tiered.sequence import TieredEmbeddingCollection


def trained_with_tiers(
    rank: int, world_size: int, cases: list[Case]
) -> list[tuple[list[tuple[float, float]], list[Collective]]]:
    """For every case the losses per step, with tiers and without sharding, and the collectives of the last step.

    Raises:
        AssertionError: first outputs, trained weights or optimizer states differ, the state of one model does not fit
            the other, or a module waits for cold rows before it has looked up hot rows.
    """
    groups = {size: rank_groups(size) for size in sorted({case.ranks_per_host for case in cases})}
    if world_size > 2:  # with host rows
        check_first_weights(cases[0], groups[cases[0].ranks_per_host])
    return [_trained(rank, world_size, case, groups[case.ranks_per_host]) for case in cases]


def _trained(
    rank: int, world_size: int, case: Case, groups: RankGroups
) -> tuple[list[tuple[float, float]], list[Collective]]:
    torch.manual_seed(0)
    unsharded = TieredModel()
    parallel = tiered_model(unsharded, case, groups)
    dense = [weight for _, weight in in_backward_optimizer_filter(parallel.named_parameters())]
    assert len(dense) == 2
    optimizer = OPTIMIZERS[case.optimizer]
    tables = [{"params": of.parameters()} for of in (unsharded.sequence, unsharded.pooled)]
    optimizers = [
        optimizer(tables, lr=LEARNING_RATE),
        torch.optim.SGD(unsharded.over.parameters(), lr=LEARNING_RATE),
        torch.optim.SGD(dense, lr=LEARNING_RATE),
    ]
    samples = SAMPLES_PER_RANK * world_size
    part = slice(rank * SAMPLES_PER_RANK, (rank + 1) * SAMPLES_PER_RANK)
    losses = []
    for step in range(STEPS):
        if step == STEPS - 1:
            module_of(parallel).sequence.set_learning_rate(LEARNING_RATE / 2)
            optimizers[0].param_groups[0]["lr"] = LEARNING_RATE / 2
        for each in optimizers:
            each.zero_grad()
        with recorded_traffic() as calls:
            mine = (parallel(*drawn_ids(step, samples, part)) - 1).square()
            mine.mean().backward()
        everything = (unsharded(*drawn_ids(step, samples, slice(0, samples))) - 1).square()
        everything.mean().backward()
        losses.append((mine.mean().item(), everything[part].mean().item()))
        for each in optimizers:
            each.step()
    tolerance = 1e-3 if case.comm_precision == "fp32" else 1e-2
    for use in (optimizer_state, lambda of: load_optimizer_state(of, {})):
        with pytest.raises(PlanError, match="is no module with tiers"):
            use(module_of(parallel).pooled)
    check_optimizer_state(module_of(parallel).sequence, unsharded, optimizers[0], tolerance)
    check_state(parallel, unsharded, tolerance)
    return losses, list(calls)


def resumed(rank: int, world_size: int, before: Case, after: list[Case]) -> list[list[tuple[float, float]]]:
    """For every case of `after`, losses per step of a module that trains on, and of one that has loaded its state.

    Raises:
        AssertionError: a module waits for cold rows before it has looked up hot rows.
        pytest.fail.Exception: a state that does not fit is not refused.
    """
    groups = {size: rank_groups(size) for size in sorted({case.ranks_per_host for case in (before, *after)})}
    first = _sequence(before, groups, seed=0)
    _steps(first, rank, world_size, 0)
    saved, state = first.state_dict(), optimizer_state(first)
    others = [_sequence(case, groups, seed=1 + at) for at, case in enumerate(after)]
    for other in others:
        other.load_state_dict(saved)
        load_optimizer_state(other, state)
    expected = _steps(first, rank, world_size, STEPS)
    with pytest.raises(PlanError, match=r"the state 'all_tiers\.momentum1' is missing; it must have"):
        load_optimizer_state(first, {})
    for rate in (math.nan, -1.0, math.inf, "0.1"):
        with pytest.raises(PlanError, match=f"learning_rate {rate!r} must be"):
            first.set_learning_rate(rate)
    with pytest.raises(PlanError, match="a state for every column shard of a row"):
        optimizer_state(_sequence(replace(before, sharding_type="column_wise"), groups, seed=0))
    part = slice(rank * SAMPLES_PER_RANK, (rank + 1) * SAMPLES_PER_RANK)
    check_cold_rows_are_awaited_last(others[0], drawn_ids(STEPS - 1, SAMPLES_PER_RANK * world_size, part)[0])
    return [list(zip(expected, _steps(other, rank, world_size, STEPS), strict=True)) for other in others]


def _sequence(case: Case, groups: dict[int, RankGroups], seed: int) -> TieredEmbeddingCollection:
    torch.manual_seed(seed)
    return module_of(tiered_model(TieredModel(), case, groups[case.ranks_per_host])).sequence


def _steps(sequence: TieredEmbeddingCollection, rank: int, world_size: int, first: int) -> list[float]:
    """The losses of `STEPS` training steps, from step `first` on."""
    losses, part = [], slice(rank * SAMPLES_PER_RANK, (rank + 1) * SAMPLES_PER_RANK)
    for step in range(first, first + STEPS):
        ids, _ = drawn_ids(step, SAMPLES_PER_RANK * world_size, part)
        loss = torch.stack([(summed(rows) - 1).square().mean() for rows in sequence(ids).wait().values()]).sum()
        loss.backward()
        losses.append(loss.item())
    return losses

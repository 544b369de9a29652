"""These checks compare the weights and states of a model with tiers to those of the same model without sharding."""

from __future__ import annotations

from types import SimpleNamespace
from unittest.mock import patch

import pytest
import torch
from torchrec import EmbeddingCollection, KeyedJaggedTensor
from torchrec.distributed import DistributedModelParallel
from torchrec.optim.apply_optimizer_in_backward import apply_optimizer_in_backward
from torchrec_bridge.tiered_sequences import (
    LEARNING_RATE,
    SAMPLES_PER_RANK,
    SEQUENCES,
    STEPS,
    Case,
    TieredModel,
    drawn_ids,
    module_of,
    plan_of,
    popular_rows,
)

from neuroshard_pipeline.errors import PlanError
from neuroshard_pipeline.torchrec_bridge.tiered import RankGroups, load_optimizer_state, optimizer_state, put_tiers
from neuroshard_pipeline.torchrec_bridge.tiered.popular import PopularTiers
from neuroshard_pipeline.torchrec_bridge.tiered.sequence import TieredEmbeddingCollection


def check_first_weights(case: Case, groups: RankGroups) -> None:
    """A module from the meta device has weights of `init_fn`, and returns the rows that its own state has."""
    model = TieredModel()
    model.sequence = EmbeddingCollection(model.sequence.embedding_configs(), torch.device("meta"), need_indices=True)
    for tables in (model.sequence, model.pooled):
        apply_optimizer_in_backward(torch.optim.SGD, tables.parameters(), {"lr": LEARNING_RATE})
    plan, rank = plan_of(model, case, groups.world.size()), groups.world.rank()
    with pytest.raises(PlanError, match="rank 1 has other popular_rows or cuts of table"):
        put_tiers(model, plan, {name: popular_rows(name).roll(rank) for name in SEQUENCES}, groups)
    put_tiers(model, plan, {name: popular_rows(name) for name in SEQUENCES}, groups)
    unsharded = TieredModel().sequence
    unsharded.load_state_dict(model.sequence.state_dict())
    for weight in unsharded.parameters():
        assert 0.4 < weight.abs().max() <= 0.5
        assert (weight != 0).all()
    ids, _ = drawn_ids(STEPS - 1, SAMPLES_PER_RANK, slice(0, SAMPLES_PER_RANK))
    with torch.no_grad():
        found, expected = model.sequence(ids).wait(), unsharded(ids)
    assert list(found) == list(expected)
    for name, rows in expected.items():
        torch.testing.assert_close(found[name].values(), rows.values(), rtol=0, atol=0)
        assert torch.equal(found[name].lengths(), rows.lengths())
        assert torch.equal(found[name].weights(), rows.weights())


def check_optimizer_state(
    sequence: TieredEmbeddingCollection, unsharded: TieredModel, expected: torch.optim.Optimizer, tolerance: float
) -> None:
    """The state is that of the dense optimizer of the unsharded tables, and a loaded state is read back."""
    found = optimizer_state(sequence)
    tables = dict(unsharded.sequence.named_parameters())
    assert list(found) == list(tables)
    for (key, weight), name in zip(tables.items(), SEQUENCES, strict=True):
        sums = {f"{name}.momentum1": of for state, of in expected.state[weight].items() if state == "sum"}
        assert found[key].keys() == sums.keys()
        for state, of in sums.items():
            torch.testing.assert_close(found[key][state].view_as(of), of, rtol=tolerance, atol=1e-9)
    other = {key: {name: torch.rand_like(of) for name, of in own.items()} for key, own in found.items()}
    torch.distributed.broadcast_object_list(sent := [other], src=0)
    load_optimizer_state(sequence, sent[0])
    for key, own in optimizer_state(sequence).items():
        for name, of in own.items():
            torch.testing.assert_close(of, sent[0][key][name], rtol=0, atol=0)


def check_state(parallel: DistributedModelParallel, unsharded: TieredModel, tolerance: float) -> None:
    """The state is that of the unsharded model, and a loaded state is read back."""
    sequence = module_of(parallel).sequence
    expected = unsharded.sequence.state_dict()
    found = sequence.state_dict()
    assert list(found) == list(expected)
    for key, weight in expected.items():
        # Row-wise Adagrad divides by the norm of a row's gradients, which magnifies rounding errors of tiny gradients.
        torch.testing.assert_close(found[key], weight, rtol=tolerance, atol=tolerance * LEARNING_RATE)
    other = {key: torch.rand_like(weight) for key, weight in expected.items()}
    torch.distributed.broadcast_object_list(sent := [other], src=0)
    assert sequence.load_state_dict(sent[0]).missing_keys == []
    for key, weight in sequence.state_dict().items():
        torch.testing.assert_close(weight, sent[0][key], rtol=0, atol=0)
    whole = parallel.state_dict()
    assert set(whole) == set(unsharded.state_dict())
    missing, unexpected = parallel.load_state_dict(whole)
    assert not missing
    assert not unexpected
    unsharded.sequence.load_state_dict(sequence.state_dict())


def check_cold_rows_are_awaited_last(module: TieredEmbeddingCollection, ids: KeyedJaggedTensor) -> None:
    """Check that the module waits for cold rows only after it has looked up hot rows."""
    parts, exchanged, hot_rows = [], module.cold.output_dist, PopularTiers.hot_rows

    def with_waits(*args):
        cold = exchanged(*args)
        return SimpleNamespace(wait=lambda: (parts.append("cold"), cold.wait())[1])

    def looked_up(tiers, rows):
        parts.append("hot")
        return hot_rows(tiers, rows)

    with patch.object(module.cold, "output_dist", with_waits), patch.object(PopularTiers, "hot_rows", looked_up):
        module(ids).wait()
    assert parts == ["hot", "cold"]

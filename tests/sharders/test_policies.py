import dataclasses

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from search.settings import WEIGHTS_AND_OPTIMIZER
from search.small_models import small_models
from search.tasks import random_task

import neuroshard_pipeline as ns
from neuroshard_pipeline.errors import DoesNotFitError, NeuroShardError
from neuroshard_pipeline.search.price import price_plan
from neuroshard_pipeline.search.problem import Problem
from neuroshard_pipeline.sharders.policies.episode import game_of
from neuroshard_pipeline.sharders.policies.networks import NETWORKS
from neuroshard_pipeline.sharders.policies.policy import Policies, Policy, PolicyError, load_policies
from neuroshard_pipeline.sharders.registry import shard, solve_all
from neuroshard_pipeline.tables.table import Table
from neuroshard_pipeline.tables.task import ShardingTask
from sharders.policy_makers import KINDS, untrained, untrained_policies

MODELS = small_models()
POLICIES = untrained_policies()


def game(seed=0, num_tables=9, world_size=3, tightness=0.5):
    task = random_task(np.random.default_rng(seed), num_tables, world_size, tightness)
    return game_of(Problem(task, MODELS, WEIGHTS_AND_OPTIMIZER))


@pytest.mark.parametrize("kind", KINDS)
@given(st.integers(0, 2**32 - 1), st.integers(1, 12), st.integers(1, 5), st.floats(0.2, 1.1), st.booleans())
def test_every_table_lies_whole_on_a_rank_with_room_or_the_error_says_bytes(kind, seed, num, world, tightness, uneven):
    task = random_task(np.random.default_rng(seed), num, world, tightness, uneven=uneven)
    refusal = ""
    try:
        plan = shard(task, MODELS, kind, policies=POLICIES)
    except DoesNotFitError as error:
        refusal = str(error)
    if refusal:
        assert "bytes" in refusal
        return
    assert sorted(part.table.name for part in plan.shards) == sorted(table.name for table in task.tables)
    assert all(part.embedding_dim == part.table.embedding_dim for part in plan.shards)
    assert all(used <= limit for used, limit in zip(plan.memory_bytes, task.memory_limits, strict=True))


@pytest.mark.parametrize("kind", KINDS)
def test_the_costs_of_a_rollout_are_those_of_its_plan(kind):
    played_game = game(tightness=0.6)
    problem = played_game.problem
    played = untrained(kind).play(played_game, 8, np.random.default_rng(0))
    assert np.isfinite(played.embedding_cost_ms).any()
    for rollout in np.flatnonzero(np.isfinite(played.embedding_cost_ms)):
        plan = price_plan(problem, problem.placement(played_game.order, played.ranks[:, rollout]), kind)
        assert played.embedding_cost_ms[rollout] == pytest.approx(plan.predicted_cost_ms)
        assert played.compute_ms[rollout] == pytest.approx(plan.predicted.compute_ms)


@pytest.mark.parametrize("kind", KINDS)
def test_the_score_of_a_rank_does_not_depend_on_its_number(kind):
    network, rng = NETWORKS[kind], np.random.default_rng(0)
    weights = untrained(kind).weights
    own = network.represent(np, weights, rng.normal(size=(5, untrained(kind).mean.size)))
    carried, ranks = rng.normal(size=(7, own.shape[1])), rng.normal(size=(7, 7))
    scores = network.scores(weights, own[0], carried, ranks)
    order = rng.permutation(7)
    np.testing.assert_allclose(network.scores(weights, own[0], carried[order], ranks[order]), scores[order])


@pytest.mark.parametrize("kind", KINDS)
def test_numpy_and_torch_compute_the_same_network(kind):
    network, rng = NETWORKS[kind], np.random.default_rng(0)
    weights = {name: value.astype(np.float64) for name, value in untrained(kind).weights.items()}
    tensors = {name: torch.from_numpy(value) for name, value in weights.items()}
    tables, ranks = rng.normal(size=(6, untrained(kind).mean.size)), rng.normal(size=(2, 3, 7))
    own, own_torch = network.represent(np, weights, tables), network.represent(torch, tensors, torch.from_numpy(tables))
    np.testing.assert_allclose(own, own_torch.numpy())
    carried = rng.normal(size=(2, 3, own.shape[1]))
    plain = network.scores(weights, own[0], carried, ranks)
    tensor = network.scores(tensors, own_torch[0], torch.from_numpy(carried), torch.from_numpy(ranks))
    np.testing.assert_allclose(plain, tensor.numpy())


@pytest.mark.parametrize("kind", KINDS)
def test_plans_depend_on_the_seed_alone(kind):
    task = random_task(np.random.default_rng(3), 20, 4, 0.3)
    first, again, other = (shard(task, MODELS, kind, seed=seed, policies=POLICIES).ranks for seed in (1, 1, 2))
    assert first == again
    assert first != other


@pytest.mark.parametrize("kind", KINDS)
def test_a_reloaded_policy_plans_identically(kind, tmp_path):
    policy = untrained(kind)
    policy.save(tmp_path / kind)
    loaded = Policy.load(tmp_path / kind)
    mine, theirs = (each.play(game(), 8, np.random.default_rng(1)) for each in (policy, loaded))
    np.testing.assert_array_equal(mine.ranks, theirs.ranks)
    assert loaded.provenance == policy.provenance


def test_policies_are_loaded_by_version_or_refused_with_the_command(tmp_path):
    with pytest.raises(PolicyError, match="autoshard_policy: holds no policy; train one with: kedro run"):
        load_policies(tmp_path)
    for version in ("1", "2"):
        for kind in KINDS:
            untrained(kind, int(version)).save(tmp_path / f"{kind}_policy" / version / f"{kind}_policy")
    newest, oldest = load_policies(tmp_path), load_policies(tmp_path, "1")
    for found, seed in ((newest, 2), (oldest, 1)):
        expected = untrained("dreamshard", seed).weights["score.costs"]
        np.testing.assert_array_equal(found.dreamshard.weights["score.costs"], expected)
    with pytest.raises(PolicyError, match="has no version '3'; available are 1, 2"):
        load_policies(tmp_path, "3")


def test_a_broken_policy_names_the_command_that_trains_it(tmp_path):
    untrained("autoshard").save(tmp_path)
    weights = tmp_path / "weights.safetensors"
    weights.write_bytes(weights.read_bytes()[:-8])
    with pytest.raises(PolicyError, match=r"weights.safetensors: .* kedro run --pipeline train_policies"):
        Policy.load(tmp_path)


@pytest.mark.parametrize("kind", KINDS)
def test_without_a_policy_the_error_names_the_command(kind):
    task = random_task(np.random.default_rng(0), 4, 2, 0.5)
    with pytest.raises(NeuroShardError, match=f"'{kind}' needs its trained policy; train it with: kedro run"):
        ns.shard(task, MODELS, kind)
    with pytest.raises(NeuroShardError, match="needs its trained policy"):
        solve_all([task], ["random", kind], MODELS, policies=Policies())


@pytest.mark.parametrize("kind", KINDS)
def test_a_task_that_fits_only_with_split_tables_is_refused_after_all_rollouts(kind):
    tables = [Table(f"t{index}", 1000, 8, 1.0) for index in range(3)]
    task = dataclasses.replace(ShardingTask(tables, 2, 16, 50_000), task_id="tight")
    attempts = solve_all([task], [kind], MODELS, policies=POLICIES).attempts
    assert f"tight: {kind} did not place all tables in any of 16 rollouts" in attempts["error"].iloc[0]

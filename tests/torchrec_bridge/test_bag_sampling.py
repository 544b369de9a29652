"""Sampled bags agree with a plain loop, are the same for the same seed, and let gradients through."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from neuroshard_pipeline.errors import TaskError

torchrec = pytest.importorskip("torchrec")
from neuroshard_pipeline.torchrec_bridge import sampled_bags  # noqa: E402


def batch(lengths, weighted=False):
    """Two features with bags of these lengths (2, B); every id is another number."""
    count = int(np.sum(lengths))
    weights = torch.rand(count, requires_grad=True) if weighted else None
    flat = torch.tensor(np.ravel(lengths), dtype=torch.int32)
    return torchrec.KeyedJaggedTensor(["a", "b"], torch.arange(count), weights, lengths=flat)


def bags_of(features):
    """The ids of every bag, feature by feature."""
    return [bag.tolist() for key in features.keys() for bag in features[key].to_dense()]  # noqa: SIM118


LENGTHS = st.integers(1, 5).flatmap(
    lambda size: st.lists(st.lists(st.integers(0, 6), min_size=size, max_size=size), min_size=2, max_size=2)
)


@given(LENGTHS, st.integers(1, 5))
def test_the_first_ids_are_those_of_a_loop(lengths, most):
    before = bags_of(batch(lengths))
    after = bags_of(sampled_bags(batch(lengths), {"b": most}))
    size = len(lengths[0])
    assert after == [*before[:size], *(bag[:most] for bag in before[size:])]


@given(LENGTHS, st.integers(1, 5), st.integers(0, 9))
def test_random_ids_keep_their_order_and_number(lengths, most, seed):
    before, made = bags_of(batch(lengths)), sampled_bags(batch(lengths), {"a": most, "b": most}, seed)
    assert bags_of(made) == bags_of(sampled_bags(batch(lengths), {"a": most, "b": most}, seed))
    for old, new in zip(before, bags_of(made), strict=True):
        assert len(new) == min(len(old), most)
        assert new == [number for number in old if number in new]


def test_every_id_of_a_bag_is_equally_likely():
    counts = np.zeros(6)
    for seed in range(600):
        counts[sampled_bags(batch([[6], [0]]), {"a": 2}, seed).values().numpy()] += 1
    assert np.abs(counts - 200).max() < 60  # five standard deviations of 200 of 600


def test_gradients_reach_the_weights_that_stay():
    features = batch([[4, 2], [1, 0]], weighted=True)
    made = sampled_bags(features, {"a": 2}, 3)
    table = torch.nn.Embedding(7, 3)
    (table(made.values()) * made.weights()[:, None]).sum().backward()
    stays = torch.zeros(7, dtype=torch.bool)
    stays[made.values()] = True
    assert torch.equal(features.weights().grad != 0, stays)
    assert torch.equal(table.weight.grad.abs().sum(dim=1) != 0, stays)


@pytest.mark.parametrize("most", [{"c": 2}, {"a": 0}])
def test_wrong_limits_are_refused(most):
    with pytest.raises(TaskError, match=rf"ids of feature '{next(iter(most))}'"):
        sampled_bags(batch([[1], [1]]), most)

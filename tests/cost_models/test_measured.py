import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from neuroshard_pipeline.cost_models.measured import split_samples
from neuroshard_pipeline.errors import CostModelError


@given(st.integers(10, 500), st.integers(0, 99))
def test_every_sample_has_exactly_one_use(count, seed):
    split = split_samples([f"s{index}" for index in range(count)], 0.1, 0.1, seed)
    together = np.concatenate([split.training, split.validation, split.test])
    assert sorted(together) == list(range(count))
    assert min(len(split.training), len(split.validation), len(split.test)) >= 1
    assert len(split.test) == max(1, round(0.1 * count))


def test_the_order_of_samples_does_not_matter():
    ids = [f"s{index}" for index in range(50)]
    straight, turned = split_samples(ids, 0.1, 0.1, 0), split_samples(ids[::-1], 0.1, 0.1, 0)
    assert {ids[row] for row in straight.test} == {ids[::-1][row] for row in turned.test}


def test_most_held_out_samples_stay_held_out_as_samples_join():
    ids = [f"s{index}" for index in range(1000)]
    few, many = split_samples(ids[:900], 0.1, 0.1, 0), split_samples(ids, 0.1, 0.1, 0)
    assert len(set(few.test) & set(many.test)) > 0.85 * len(few.test)


def test_too_few_samples_are_refused():
    with pytest.raises(CostModelError, match="9 usable samples are too few"):
        split_samples([f"s{index}" for index in range(9)], 0.1, 0.1, 0)

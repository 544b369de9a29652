"""Samples of reductions: a grid of sizes, in which every rank has an equal number of whole floats."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from neuroshard_pipeline.augment.reduction_draws import ReductionSampleParams, reduction_samples
from neuroshard_pipeline.tables.samples import REDUCTIONS

GRID = {"world_sizes": (2, 4, 8), "ranks_per_host": (None,), "num_sizes": 9, "min_bytes": 4096, "max_bytes": 2**23}


@given(
    world_sizes=st.lists(st.integers(2, 3000), min_size=1, max_size=4, unique=True).map(tuple),
    ranks_per_host=st.lists(st.none() | st.integers(1, 16), min_size=1, max_size=3).map(tuple),
    num_sizes=st.integers(3, 30),
    min_bytes=st.integers(1, 10_000),
    factor=st.integers(1, 10_000),
)
def test_all_collectives_of_a_group_have_the_same_sizes_and_no_size_twice(min_bytes, factor, **grid):
    params = ReductionSampleParams(**grid, min_bytes=min_bytes, max_bytes=min_bytes * factor)
    frame = reduction_samples(params)
    assert frame["sample_id"].is_unique
    assert (frame["size_bytes"] % (4 * frame["world_size"]) == 0).all()
    assert (frame["size_bytes"] > 0).all()
    assert not frame.duplicated(["collective", "size_bytes", "world_size", "hosts"]).any()
    assert set(frame["world_size"]) == set(params.world_sizes)
    for _, group in frame.groupby(["world_size", "hosts"]):
        sizes = [rows["size_bytes"].tolist() for _, rows in group.groupby("collective")]
        assert sizes == [sizes[0]] * len(REDUCTIONS)
        assert 1 <= len(sizes[0]) <= params.num_sizes


def test_groups_are_drawn_for_each_number_of_ranks_per_host():
    frame = reduction_samples(ReductionSampleParams(**GRID | {"world_sizes": (4, 8, 16), "ranks_per_host": (8, 1)}))
    groups = sorted(set(zip(frame["world_size"], frame["hosts"], strict=True)))
    assert groups == [(4, 1), (4, 4), (8, 1), (8, 8), (16, 2), (16, 16)]


def test_a_finer_grid_contains_the_coarse_one():
    coarse, fine = (
        set(reduction_samples(ReductionSampleParams(**GRID | {"num_sizes": n}))["sample_id"]) for n in (9, 17)
    )
    assert coarse < fine
    assert len(coarse) == 3 * 3 * 9


def test_sizes_span_the_range_evenly_on_a_logarithmic_scale():
    frame = reduction_samples(ReductionSampleParams(**GRID))
    for _, sizes in frame.groupby(["collective", "world_size"])["size_bytes"]:
        assert [sizes.min(), sizes.max()] == [GRID["min_bytes"], GRID["max_bytes"]]
        assert np.ptp(np.diff(np.log(sizes))) < 0.01


def test_impossible_grids_are_refused():
    for change in ({"max_bytes": 100}, {"num_sizes": 2}, {"world_sizes": (1,)}, {"ranks_per_host": ()}):
        with pytest.raises(ValidationError):
            ReductionSampleParams(**GRID | change)

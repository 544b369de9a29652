"""The fit of TorchRec's lookup formula to costs."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from neuroshard_pipeline.sharders.perf_fit import fit_lookups, shard_sets
from neuroshard_pipeline.tables.table import Shard, Table
from neuroshard_pipeline.torchrec_plan.perf_formula import LookupFormula, summed_bytes

BATCH = 64


@settings(max_examples=10)
@given(
    price=st.floats(1e-9, 1e-3),
    coefficients=st.lists(st.floats(0.05, 20), min_size=6, max_size=6),
    least_width=st.sampled_from([0, 32]),
)
def test_the_fit_finds_the_numbers_of_a_formula(price, coefficients, least_width):
    sets = shard_sets([Table(f"t{i}", 100, 8 * 2 ** (i % 6), 1.0 + i) for i in range(20)], BATCH, 2)[:60]
    truth = LookupFormula(1 / price, np.reshape(coefficients, (2, 3)), least_width)
    costs_ms = truth.costs_ms(sets, BATCH)
    found = fit_lookups(sets, BATCH, costs_ms)
    np.testing.assert_allclose(found.costs_ms(sets, BATCH), costs_ms, rtol=1e-3)


def test_bytes_of_a_set_are_the_sums_over_its_shards():
    wide, narrow = Shard(Table("a", 10, 64, 3.0), 0, 64), Shard(Table("b", 10, 8, 2.0, data_type="fp16"), 0, 4)
    (together,) = summed_bytes([[wide, narrow]], 5, 32)
    assert together.tolist() == [8 * 5 * (3 + 2), 5 * (3 * 64 * 4 + 2 * 32 * 2), 5 * (64 * 4 + 4 * 2)]

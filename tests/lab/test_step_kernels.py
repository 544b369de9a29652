"""Kernels of a step with a price of their own, computed by hand with round numbers."""

from __future__ import annotations

from dataclasses import replace

import pytest
from lab.test_step import HOST, NARROW, WIDE, by_rows, cost, replicas, task, us

from neuroshard_pipeline.tables.table import whole


@pytest.mark.parametrize("pooling", ["sum", "none"])
def test_ids_of_row_shards_take_a_time_each_to_be_sorted_by_ranks(pooling):
    """The 200 ids of a rank's samples are sorted, besides the lengths of its 100 samples for each of 2 ranks."""
    table = replace(NARROW, pooling=pooling)
    per_id = {"pooled_sort_ns": 5e3, "sequence_sort_ns": 7e3}
    priced, slower = (cost(task(table), by_rows(table, (0, 1)), host=HOST.model_copy(update=of)) for of in ({}, per_id))
    shipped = HOST.sort_ns(pooling == "none")
    added = 200 * ((7e3 if pooling == "none" else 5e3) - shipped) / 1e3
    assert us(slower.input_dist_ms - priced.input_dist_ms) == pytest.approx([added] * 2)


def test_gradients_of_sequence_rows_are_put_side_by_side_and_added():
    """Each of two ranks has 200 ids of 4 columns, and half of the rows that are looked up."""
    rows = replace(NARROW, pooling="none")
    floats = 8 * 200 * 4 / 1e3
    whole_rows, cut = (cost(task(rows), placed) for placed in ([(whole(rows), 0)], by_rows(rows, (0, 1))))
    # Backward: put side by side, then permuted and divided by the rank that has the rows, which permutes them forward,
    # too. A permutation is four kernels and also moves the lengths of 200 bags.
    permuted = 4 * 10 + 2 * 4 * 200 / 1e3
    own = 2 * (permuted + 2 * floats) + 10 + 2 * floats
    assert us(whole_rows.module_ms) == pytest.approx([own + 10 + floats, 10 + floats])
    # Row shards also order the rows by ids, forward, and add their gradients to zeros, backward: two passes each.
    own = 2 * (permuted + floats) + 10 + floats
    assert us(cut.module_ms) == pytest.approx([own + 10 + floats + 3 * (10 + floats)] * 2)


@pytest.mark.parametrize(
    ("segment_ns", "number_ns", "added"), [(5e3, 0, 200 * 5), (0, 7, 0), (0, 12, 800 * (12 - 8) / 1e3)]
)
def test_a_permutation_takes_a_time_per_segment_and_at_least_one_per_number(segment_ns, number_ns, added):
    """A rank has half of the rows of 200 bags, 800 numbers that memory moves in 8 ns each, there and back."""
    table = replace(NARROW, pooling="none")
    prices = {"permute_segment_ns": segment_ns, "permute_number_ns": number_ns}
    free, priced = (cost(task(table), by_rows(table, (0, 1)), host=HOST.model_copy(update=of)) for of in ({}, prices))
    assert us(priced.module_ms - free.module_ms) == pytest.approx([2 * added] * 2)
    # The ids of 100 bags are put into the order of the groups, those of 200 bags into the order of features.
    assert us(priced.input_dist_ms - free.input_dist_ms) == pytest.approx([300 * segment_ns / 1e3] * 2)


def test_outputs_of_several_kernels_of_a_rank_are_copied_to_one_place():
    """One pass, forward only, of all outputs of the rank."""
    half = replace(WIDE, data_type="fp16")

    def added(*where: int) -> list[float]:
        one, two = (
            cost(task(NARROW, wide), [*replicas(NARROW, 2), *replicas(wide, 2)])
            if not where
            else cost(task(NARROW, wide), list(zip(map(whole, (NARROW, wide)), where, strict=True)))
            for wide in (WIDE, half)
        )
        return us(two.module_ms - one.module_ms)

    assert added(0, 0) == pytest.approx([10 + 2 * 4 * 200 * (4 + 8) / 1e3, 0])
    assert added(0, 1) == pytest.approx([0, 0])
    assert added() == pytest.approx([10 + 2 * 4 * 100 * (4 + 8) / 1e3] * 2)  # replicas look up their rank's samples

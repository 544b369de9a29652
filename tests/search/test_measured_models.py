"""Cost models of benchmarks/tiers/measured_models.py, made from times of collectives and kernels.

Here, the times are invented. With a slow wire between hosts, the search cuts tiers; with a fast one, it does not.
"""

from dataclasses import replace

import numpy as np
import pytest
from measured_models import MeasuredComm, MeasuredLookups, MeasuredModels, described, prices_of
from sequence_tasks import SCALES, sequence_task

from neuroshard_pipeline.cost_models.reductions import Curve, Group, ReductionCosts
from neuroshard_pipeline.cost_models.step import StepCostModel
from neuroshard_pipeline.search.volumes import plan_volumes
from neuroshard_pipeline.sharders.registry import shard
from neuroshard_pipeline.tables.popularity import curve_of_counts
from neuroshard_pipeline.tables.samples import REDUCTIONS
from neuroshard_pipeline.tables.tiers import cuts_of
from search.settings import QUICK

COPIED_MS = 2.0


def line(latency_ms: float, ms_per_mb: float) -> Curve:
    sizes = np.array([1e3, 1e7])
    return Curve(sizes, latency_ms + ms_per_mb * sizes / 1e6)


def models(across_ms_per_mb: float, inside_ms_per_mb: float) -> MeasuredModels:
    """Models of four ranks on two hosts."""
    curves = {2: line(1.0, inside_ms_per_mb), 4: line(1.0, across_ms_per_mb)}
    work = {"copied": COPIED_MS, "dense": 3.0, "searched": 50.0}
    of_group = {Group(4, 2): line(1.0, across_ms_per_mb)}
    errors = dict.fromkeys(REDUCTIONS, 0.1)
    step = StepCostModel(
        {ranks: prices_of(curve, **work) for ranks, curve in curves.items()},
        ReductionCosts(dict.fromkeys(REDUCTIONS, of_group), errors, errors),
    )
    return MeasuredModels(MeasuredLookups(np.array([3.0, 8.0]), 0.1), MeasuredComm(curves, 0.1, COPIED_MS), step)


def test_an_all_to_all_costs_what_its_largest_buffer_costs_and_waits_for_the_last_rank():
    comm = models(30.0, 1.0).comm
    dims = np.array([[10.0, 20.0, 0.0, 5.0]])
    expected = 1.0 + 30.0 * 4 * 20 * 1000 / 1e6 + COPIED_MS / 2 * (10 + 20 + 0 + 5) / 4 * 1000 / 1e6
    np.testing.assert_allclose(comm.backward_ms(dims, 1000), expected)
    skew = np.array([[0.0, 3.0, 1.0, 0.0]])
    np.testing.assert_allclose(comm.forward_ms(dims, skew, 1000), expected + np.array([[3.0, 0.0, 2.0, 3.0]]))
    np.testing.assert_allclose(comm.forward_interval_ms(dims, skew * 0, 1000)[0, 0], [expected / 1.1, expected * 1.1])
    on_hosts = comm.backward_ms(dims.reshape(2, 2), 1000)
    np.testing.assert_allclose(on_hosts[:, 0], [1.0 + 0.08 + 0.015, 1.0 + 0.02 + 0.0025])


@pytest.mark.parametrize(("across_ms_per_mb", "has_tiers"), [(30.0, True), (0.001, False)])
def test_the_search_cuts_tiers_where_the_wire_is_slow(across_ms_per_mb, has_tiers):
    source = sequence_task("published", 4, 2, replace(SCALES["gloo"], tables=2))
    counts = source.counts(range(8))
    counted = source.with_curves({name: curve_of_counts(of) for name, of in counts.items()})
    made = models(across_ms_per_mb, 0.001)
    plans = [shard(replace(counted.task, tiers=tiers), made, "neuroshard_plus", QUICK) for tiers in (False, True)]
    across = [plan_volumes(plan.task, plan.shards, plan.ranks).across for plan in plans]
    sent = [sum(of.sum() for of in kinds.values()) for kinds in across]
    assert bool(cuts_of(plans[1].task)) == has_tiers
    assert (sent[1] < 0.4 * sent[0]) == has_tiers
    assert "the ranks of the benchmark timed" in plans[1].explain()
    assert f"all-to-all of 4 ranks 1 ms + {across_ms_per_mb:.3g} ms/MB" in described(made)

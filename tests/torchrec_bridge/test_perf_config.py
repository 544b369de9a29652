"""TorchRec's planner accepts numbers that are fitted to cost models; `perf_formula` repeats TorchRec's formulas."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from search.small_models import small_models
from search.small_step import step_models
from torchrec_bridge.needs_torchrec import QUIET
from torchrec_bridge.perf_estimates import (
    BATCH,
    ROWS,
    TYPES,
    WIDTHS,
    constraints,
    module,
    perfs,
    scaled_models,
    tables,
    topology,
)

# isort: split
from torchrec import EmbeddingBagCollection, EmbeddingCollection
from torchrec.distributed.embedding import EmbeddingCollectionSharder
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.planner import EmbeddingShardingPlanner, ParameterConstraints
from torchrec.distributed.planner.enumerators import EmbeddingEnumerator
from torchrec.distributed.planner.estimator import EmbeddingPerfEstimatorFactory, HardwarePerfConfig
from torchrec.distributed.planner.shard_estimators import EmbeddingPerfEstimator
from torchrec.distributed.planner.stats import NoopEmbeddingStats

from neuroshard_pipeline.cost_models.reductions import Curve, Group, ReductionCosts
from neuroshard_pipeline.errors import CostModelError, PlanError
from neuroshard_pipeline.sharders.perf_fit import lookup_costs_ms
from neuroshard_pipeline.tables.lookups import lookup_batch_size, lookup_shard
from neuroshard_pipeline.tables.row_blocks import row_shards
from neuroshard_pipeline.tables.samples import REDUCTIONS
from neuroshard_pipeline.tables.table import Shard, Table, whole
from neuroshard_pipeline.torchrec_bridge import torchrec_perf_config, torchrec_planner
from neuroshard_pipeline.torchrec_plan.modules import embedding_bag_config, embedding_config
from neuroshard_pipeline.torchrec_plan.perf_formula import LookupFormula

pytestmark = QUIET


@pytest.fixture(scope="module")
def config():
    return torchrec_perf_config(small_models(), topology(), BATCH, tables())


def test_every_sharding_type_has_a_positive_finite_estimate(config):
    found = perfs(config, TYPES)
    assert {sharding_type for _, sharding_type, _ in found} == set(TYPES)
    for shards in found.values():
        assert all(0 < perf.total < np.inf for _, perf in shards)


def formula_of(config) -> LookupFormula:
    """`perf_formula` with the numbers of `config`; TorchRec's own code is its oracle."""
    coefficients = config.coefficients.get_coefficients("column_wise")
    rows = [
        [each.input_read_size_multiplier, each.lookup_size_multiplier, each.embedding_output_multiplier]
        for each in (coefficients.fwd, coefficients.bwd)
    ]
    return LookupFormula(config.lookup_bw, np.array(rows), 32 if config._use_min_dim_for_lookup else 0)


def test_estimates_are_those_of_the_fitted_formula(config):
    formula = formula_of(config)
    by_name = {table.name: table for table in tables()}
    checked = 0
    for (name, _, kernel), shards in perfs(config).items():
        for (_, width), perf in shards:
            if kernel == "fused":
                expected = formula.costs_ms([[Shard(by_name[name], 0, width)]], 4 * BATCH)[0]
                np.testing.assert_allclose([perf.fwd_compute, perf.bwd_compute], expected, rtol=1e-9)
                np.testing.assert_allclose(perf.fwd_comms, 4 * BATCH * width * 4 / config.inter_host_bw, rtol=1e-9)
                assert perf.bwd_comms == perf.fwd_comms
                checked += 1
    assert checked > len(ROWS)


@pytest.mark.parametrize(("pooling", "num_features"), [("sum", 2), ("none", 1)])
def test_the_formula_counts_one_output_per_feature_or_per_id(config, pooling, num_features):
    table = Table("t", 1000, 64, 12.0, pooling=pooling, num_features=num_features)
    limits = {
        "t": ParameterConstraints(
            sharding_types=["table_wise"],
            pooling_factors=[12.0 / num_features] * num_features,
            compute_kernels=["fused"],
        )
    }
    collection, make_config, sharder = (
        (EmbeddingCollection, embedding_config, EmbeddingCollectionSharder())
        if pooling == "none"
        else (EmbeddingBagCollection, embedding_bag_config, EmbeddingBagCollectionSharder())
    )
    own = collection(tables=[make_config("t", table)], device=torch.device("meta"))
    on = topology()
    ((shard,),) = (
        option.shards
        for option in EmbeddingEnumerator(on, BATCH, limits, estimator=config.estimator(on, limits)).enumerate(
            own, [sharder]
        )
    )
    expected = formula_of(config).costs_ms([[whole(table)]], 4 * BATCH)[0]
    np.testing.assert_allclose([shard.perf.fwd_compute, shard.perf.bwd_compute], expected, rtol=1e-9)


def test_lookups_of_row_shards_and_replicas_have_numbers_of_their_own():
    """TorchRec's own code is the oracle of the formulas, which `perf_fit` applies to what a shard's kernel sees."""
    config = torchrec_perf_config(step_models(), topology(), BATCH, tables())
    for sharding_type, kernel in (("row_wise", "fused"), ("data_parallel", "dense")):
        coefficients = config.coefficients.get_coefficients(sharding_type)
        assert coefficients != config.coefficients.default
        rows = [
            [each.input_read_size_multiplier, each.lookup_size_multiplier, each.embedding_output_multiplier]
            for each in (coefficients.fwd, coefficients.bwd)
        ]
        formula, found = LookupFormula(config.lookup_bw, np.array(rows), 0), perfs(config, [sharding_type])
        for table in tables():
            (_, perf), *_ = found[table.name, sharding_type, kernel]
            shard = whole(table, "data_parallel") if kernel == "dense" else row_shards(table, "row_wise", 4)[0]
            seen, samples = lookup_shard(shard, 4 * BATCH, 4), lookup_batch_size(shard, 4 * BATCH, 4)
            expected = formula.costs_ms([[seen]], samples)[0]
            np.testing.assert_allclose([perf.fwd_compute, perf.bwd_compute], expected, rtol=0.01)  # ids are rounded up


def test_reductions_have_bandwidths_of_their_own():
    cheap, dear = (
        torchrec_perf_config(step_models(ms_per_mib=price), topology(4, 2), BATCH, tables()) for price in (0.2, 20.0)
    )
    before, after = perfs(cheap, TYPES), perfs(dear, TYPES)
    for (name, sharding_type, kernel), shards in before.items():
        growth = after[name, sharding_type, kernel][0][1].bwd_comms / shards[0][1].bwd_comms
        if sharding_type in ("table_wise", "column_wise", "table_column_wise"):
            assert growth == 1.0
        else:
            assert growth > 1.001  # copies, optimizer kernels and all-to-alls between hosts do not grow
    assert cheap.lookup_bw == dear.lookup_bw


def test_the_bandwidths_of_reductions_are_those_of_the_step_cost_model():
    """Costs in proportion to the bytes are fitted exactly; TorchRec adds copies and kernels to the backward costs."""
    models, host = step_models(), topology(4, 4)
    sizes = np.array([2.0**10, 2.0**30])
    bytes_per_ms = {"reduce_scatter": 1e6, "all_gather": 2e6, "all_reduce": 4e6}
    errors = dict.fromkeys(REDUCTIONS, 0.1)

    def estimates(factor: float):
        curves = {name: {Group(4, 1): Curve(sizes, factor * sizes / bytes_per_ms[name])} for name in REDUCTIONS}
        step = dataclasses.replace(models.step, reductions=ReductionCosts(curves, errors, errors))
        config = torchrec_perf_config(dataclasses.replace(models, step=step), host, BATCH, tables())
        return perfs(config, ["row_wise", "data_parallel"], host)

    once, thrice = estimates(1), estimates(3)
    for table in tables():
        (_, perf), *_ = once[table.name, "row_wise", "fused"]
        (_, dear), *_ = thrice[table.name, "row_wise", "fused"]
        pooled_bytes = 4 * BATCH * table.embedding_dim * 4
        assert perf.fwd_comms == pytest.approx(pooled_bytes / bytes_per_ms["reduce_scatter"])
        assert dear.bwd_comms - perf.bwd_comms == pytest.approx(2 * pooled_bytes / bytes_per_ms["all_gather"])
        (_, perf), *_ = once[table.name, "data_parallel", "dense"]
        (_, dear), *_ = thrice[table.name, "data_parallel", "dense"]
        assert dear.bwd_comms - perf.bwd_comms == pytest.approx(2 * table.weight_bytes / bytes_per_ms["all_reduce"])


def test_estimates_grow_with_the_costs(config):
    compute, comm = 2.0, 3.0
    scaled = torchrec_perf_config(scaled_models(compute, comm), topology(), BATCH, tables())
    before, after = perfs(config), perfs(scaled)
    assert before.keys() == after.keys()
    for key, shards in before.items():
        for (_, old), (_, new) in zip(shards, after[key], strict=True):
            assert new.fwd_compute == pytest.approx(compute * old.fwd_compute, rel=1e-3)
            assert new.bwd_compute == pytest.approx(compute * old.bwd_compute, rel=1e-3)
            assert new.fwd_comms == pytest.approx(comm * old.fwd_comms)
            assert new.bwd_comms == pytest.approx(comm * old.bwd_comms)


def test_the_fit_is_closer_to_the_costs_than_torchrecs_own_numbers(config):
    """Costs of column shards that the fit has not seen; TorchRec assumes a GPU of its own."""
    models, seen = small_models(), perfs(config, ["column_wise"])
    default = perfs(SimpleNamespace(estimator=EmbeddingPerfEstimator), ["column_wise"])
    by_name = {table.name: table for table in tables()}
    errors = []
    for (name, sharding_type, kernel), shards in seen.items():
        if kernel == "fused":
            (_, width), fitted = shards[0]
            shard = Shard(by_name[name], 0, width)
            cost_ms = lookup_costs_ms(models, [[shard]], 4 * BATCH, "sgd").sum()
            (_, own), *_ = default[name, sharding_type, kernel]
            errors.append([abs(np.log((of.fwd_compute + of.bwd_compute) / cost_ms)) for of in (fitted, own)])
    fitted, own = np.median(errors, axis=0)
    assert fitted < own


def test_the_bandwidths_of_the_topology_do_not_change_the_fit(config):
    fast = torchrec_perf_config(small_models(), topology(hbm_mem_bw=1e12, inter_host_bw=1e12), BATCH, tables())
    assert (fast.lookup_bw, fast.inter_host_bw) == (config.lookup_bw, config.inter_host_bw)


def test_one_host_keeps_the_link_between_hosts_of_its_topology(config):
    alone = torchrec_perf_config(small_models(), topology(4, 4, inter_host_bw=123.0), BATCH, tables())
    assert alone.inter_host_bw == 123.0
    assert config.inter_host_bw != topology().inter_host_bw


@pytest.mark.parametrize("sharding_types", [["table_wise", "column_wise"], TYPES])
def test_the_planner_covers_every_table(config, sharding_types):
    planner = torchrec_planner(config, topology(), BATCH, constraints(sharding_types), stats=NoopEmbeddingStats())
    assert isinstance(planner, EmbeddingShardingPlanner)
    plan = planner.plan(module(), [EmbeddingBagCollectionSharder()])
    (parameters,) = plan.plan.values()
    assert set(parameters) == set(ROWS)
    for name, parameter in parameters.items():
        if parameter.sharding_type != "data_parallel":
            cells = sum(np.prod(shard.shard_sizes) for shard in parameter.sharding_spec.shards)
            assert cells == ROWS[name] * WIDTHS[name]


def test_host_memory_is_as_much_slower_as_torchrec_assumes(config):
    found = perfs(config, ["table_wise"])
    (_, hbm), (_, host) = (found["c", "table_wise", kernel][0] for kernel in ("fused", "fused_uvm"))
    assert host.fwd_compute == pytest.approx(
        hbm.fwd_compute * topology().hbm_mem_bw / topology().hbm_to_ddr_mem_bw * 10
    )


@pytest.mark.parametrize(
    ("compute", "comm", "together"),
    [(1.0, 1e-6, {"wide", "narrow"}), (1e-6, 1.0, {"looked_up", "narrow"})],
)
def test_the_planner_balances_what_the_models_call_expensive(compute, comm, together):
    """The most expensive of three tables has a rank of its own."""
    chosen = [Table("wide", 1000, 128, 1.0), Table("narrow", 1000, 64, 1.0), Table("looked_up", 1000, 8, 900.0)]
    limits = {
        t.name: ParameterConstraints(sharding_types=["table_wise"], pooling_factors=[t.pooling_factor]) for t in chosen
    }
    two = topology(2, 2)
    config = torchrec_perf_config(scaled_models(compute, comm), two, BATCH, chosen)
    planner = torchrec_planner(config, two, BATCH, limits, stats=NoopEmbeddingStats())
    (parameters,) = planner.plan(module(chosen), [EmbeddingBagCollectionSharder()]).plan.values()
    alone = ({"wide", "narrow", "looked_up"} - together).pop()
    assert len({parameters[name].ranks[0] for name in together}) == 1
    assert parameters[alone].ranks[0] not in {parameters[name].ranks[0] for name in together}


def test_a_registered_config_is_found_by_name(config, monkeypatch):
    monkeypatch.setattr(EmbeddingPerfEstimatorFactory, "_registry", dict(EmbeddingPerfEstimatorFactory._registry))
    config.register("our-cluster")
    assert isinstance(config, HardwarePerfConfig)
    assert EmbeddingPerfEstimatorFactory.create("our-cluster", topology=topology()).config is config


def test_one_rank_is_refused():
    with pytest.raises(PlanError, match="one rank"):
        torchrec_perf_config(small_models(), topology(1, 1), BATCH, tables())


def test_models_of_other_hardware_are_refused(monkeypatch):
    models = small_models()
    monkeypatch.setattr(type(models.compute), "provenance", {"hardware": {"device": "cpu"}}, raising=False)
    with pytest.raises(CostModelError, match="'cpu'"):
        torchrec_perf_config(models, topology(), BATCH, tables())

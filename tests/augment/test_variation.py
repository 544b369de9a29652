"""Derived tables and their samples: profiles, held-out tables, batch sizes and purposes are as documented."""

import numpy as np
import pandas as pd
import pytest
from pydantic import ValidationError

from neuroshard_pipeline.augment.comm_draws import CommSampleParams, comm_samples
from neuroshard_pipeline.augment.compute_draws import ComputeSampleParams, compute_samples
from neuroshard_pipeline.augment.pool import PoolParams, generate_pool, generated_tables
from neuroshard_pipeline.augment.variation import VariationParams, is_derived, varied_pool
from neuroshard_pipeline.augment.varied_draws import VariedSampleParams, evaluation_samples, varied_samples
from neuroshard_pipeline.tables.frames import compute_samples_from_frame, tables_from_frame
from neuroshard_pipeline.tables.ids import draw_ids
from neuroshard_pipeline.tables.profile import reuse_histogram
from neuroshard_pipeline.tables.table import Table

VARIATION = {
    "tables_per_batch_size": 60, "batch_sizes": (16, 64), "interpolation_batch_size": 32,
    "extrapolation_batch_size": 128, "fp16_share": 0.3,
    "row_factors": (0.25, 4.0), "pooling_factors": (0.25, 4.0), "reuse_factors": (0.25, 4.0),
    "small_table_share": 0.25, "small_table_rows": (3, 20), "single_valued_share": 0.2,
    "default_profile_share": 0.3, "held_out_share": 0.2, "public_row_scale": 100.0, "seed": 1,
}  # fmt: skip
COMPUTE = ComputeSampleParams(
    num_samples=40, batch_size=64, dimensions=(4, 8, 16), min_tables=1, max_tables=5, memory_bytes=2**24, seed=0
)
VARIED = {
    "num_samples": 60, "samples_per_group": 8, "dimensions": (4, 8, 12, 256), "dimension_weights": (1.0, 1.0, 1.0, 0.5),
    "rowwise_adagrad_share": 0.5, "similar_tables_share": 0.5, "similar_rows_share": 0.5,
    "spread_share": 0.5, "spread_world_sizes": (2, 8), "seed": 2,
}  # fmt: skip
PUBLIC = {"shop": [Table("items", 10_000, 16, 1.0), Table("users", 700, 64, 3.0)]}


@pytest.fixture(scope="module")
def generated():
    return generate_pool(PoolParams(num_tables=40, batch_size=64, row_scale=1024.0, seed=0))


@pytest.fixture(scope="module")
def variation():
    return VariationParams(**VARIATION)


@pytest.fixture(scope="module")
def pool(generated, variation):
    return varied_pool(generated, 64, PUBLIC, variation)


@pytest.fixture(scope="module")
def drawn(pool, variation):
    return varied_samples(pool, COMPUTE, variation, VariedSampleParams(**VARIED))


@pytest.fixture(scope="module")
def evaluation(pool, variation):
    return evaluation_samples(pool, PUBLIC, COMPUTE, variation, VariedSampleParams(**VARIED))


def test_generated_tables_do_not_change_and_can_be_selected(pool, generated):
    pd.testing.assert_frame_equal(generated_tables(pool)[list(generated.columns)], generated)
    assert generated_tables(generated) is generated
    assert pool["table"].is_unique


def test_ids_of_a_derived_table_have_exactly_its_profile(pool):
    derived = pool[is_derived(pool["table"])]
    for table, batch_size in zip(tables_from_frame(derived), derived["batch_size"], strict=True):
        indices = draw_ids(table, int(batch_size), seed=5).indices
        unique_rows, shares, _ = reuse_histogram(indices)
        assert unique_rows == table.unique_rows
        np.testing.assert_allclose(shares, table.reuse, atol=1e-12)
        assert len(indices) == round(table.pooling_factor * batch_size)


def test_derived_tables_vary_in_batch_size_rows_pooling_and_data_type(pool, generated, variation):
    derived = pool[is_derived(pool["table"])]
    batches = {*variation.batch_sizes, variation.interpolation_batch_size, variation.extrapolation_batch_size}
    assert derived.groupby("batch_size").size().to_dict() == dict.fromkeys(batches, 60)
    assert 0.2 < (derived["data_type"] == "fp16").mean() < 0.4
    origin = generated.set_index("table").loc[derived["origin"]]
    for column in ("num_embeddings", "pooling_factor"):
        factor = derived[column].to_numpy() / origin[column].to_numpy()
        assert np.quantile(factor, 0.2) < 0.8
        assert np.quantile(factor, 0.8) > 1.25
    assert (derived["pooling_factor"] == 1.0).mean() > 0.1
    assert 0.2 < derived["default_profile"].mean() < 0.4
    assert (derived["unique_rows"] <= derived["num_embeddings"]).all()


def test_some_tables_are_small_with_and_without_a_default_profile(pool, generated):
    derived = pool[is_derived(pool["table"])]
    small = derived["num_embeddings"] <= 20
    assert 0.15 < small.mean() - (generated["num_embeddings"] <= 20).mean() < 0.35
    assert derived.loc[small, "num_embeddings"].min() <= 5
    assert set(derived.loc[small, "default_profile"]) == {True, False}
    assert (derived.loc[small, "pooling_factor"] > 2).any()


def test_tables_derived_from_held_out_tables_are_held_out(pool):
    by_origin = pool.groupby("origin")["held_out"].nunique()
    assert (by_origin == 1).all()
    generated = generated_tables(pool)
    assert generated["held_out"].sum() == 8
    assert pool.loc[pool["origin"] == "shop", "held_out"].all()


def test_no_training_sample_has_a_held_out_table_or_batch(pool, drawn, variation):
    samples, settings = drawn
    paper = compute_samples(pool, COMPUTE)
    every = pd.concat([samples, paper]).merge(pool[["table", "held_out"]], on="table")
    assert not every["held_out"].any()
    assert set(samples["batch_size"]) == set(variation.batch_sizes)
    assert set(settings["purpose"]) == {"training"}
    assert set(settings["optimizer"]) == {"sgd", "rowwise_adagrad"}
    assert settings["sample_id"].tolist() == samples["sample_id"].unique().tolist()


def test_a_samples_tables_share_batch_and_data_type_and_fit_the_memory(pool, drawn, evaluation):
    facts = pool[["table", "batch_size", "data_type", "default_profile", "num_embeddings"]].rename(
        columns={"batch_size": "own_batch"}
    )
    for samples, _ in (drawn, evaluation):
        joined = samples.merge(facts, on="table")
        assert len(joined) == len(samples)
        assert (joined["batch_size"] == joined["own_batch"]).all()
        assert (joined.groupby("sample_id")["data_type"].agg(lambda kinds: len(set(kinds))) == 1).all()
        assert (joined.groupby("sample_id")["default_profile"].agg(lambda kinds: len(set(kinds))) == 1).all()
        assert not joined.duplicated(["sample_id", "table"]).any()
        element_bytes = joined["data_type"].map({"fp32": 4, "fp16": 2})
        weights = joined["num_embeddings"] * joined["embedding_dim"] * element_bytes
        assert weights.groupby(joined["sample_id"]).sum().max() <= COMPUTE.memory_bytes
        assert joined.groupby("sample_id").size().max() <= COMPUTE.max_tables


def test_evaluation_samples_have_the_tables_and_batches_of_their_purpose(pool, evaluation, variation):
    samples, settings = evaluation
    assert settings.groupby("purpose").size().to_dict() == dict.fromkeys(
        ("unseen_tables", "batch_interpolation", "batch_extrapolation", "shop", "row_shards", "replicas"), 8
    )
    joined = samples.merge(settings, on="sample_id").merge(pool[["table", "origin", "held_out"]], on="table")
    groups = dict(list(joined.groupby("purpose")))
    assert groups["unseen_tables"]["held_out"].all()
    assert not groups["unseen_tables"]["origin"].eq("shop").any()
    assert set(groups["unseen_tables"]["batch_size"]) <= {64, *variation.batch_sizes}
    for group, batch_size in (("batch_interpolation", 32), ("batch_extrapolation", 128)):
        assert set(groups[group]["batch_size"]) == {batch_size}
        assert not groups[group]["held_out"].any()
    assert groups["shop"]["origin"].eq("shop").all()
    widths = groups["shop"].groupby("table")["embedding_dim"].max()
    assert widths["shop/items"] <= 16
    assert widths["shop/users"] <= 64


def test_spread_samples_are_row_shards_or_replicas_of_ordinary_samples(pool, variation, drawn):
    samples, settings = drawn
    ordinary, column_wise = varied_samples(
        pool, COMPUTE, variation, VariedSampleParams(**VARIED | {"spread_share": 0.0})
    )
    pd.testing.assert_frame_equal(samples, ordinary)
    pd.testing.assert_frame_equal(settings[["sample_id", "optimizer", "purpose"]], column_wise.iloc[:, :3])
    assert set(column_wise["sharding_type"]) == {"column_wise"}
    assert set(column_wise["world_size"]) == {1}
    counts = settings.groupby("sharding_type").size()
    assert set(counts.index) == {"column_wise", "row_wise", "data_parallel"}
    assert 20 <= counts["column_wise"] <= 40
    spread = settings["sharding_type"] != "column_wise"
    assert set(settings.loc[spread, "world_size"]) == {2, 8}
    assert set(settings.loc[~spread, "world_size"]) == {1}


def test_spread_evaluation_samples_have_tables_of_training(pool, evaluation, variation):
    samples, settings = evaluation
    spread = settings[settings["world_size"] > 1]
    assert {*zip(spread["purpose"], spread["sharding_type"], strict=True)} == {
        ("row_shards", "row_wise"),
        ("replicas", "data_parallel"),
    }
    joined = samples.merge(spread, on="sample_id").merge(pool[["table", "held_out"]], on="table")
    assert not joined["held_out"].any()
    assert set(joined["batch_size"]) == set(variation.batch_sizes)
    read = compute_samples_from_frame(samples, pool, settings)
    row_shards = [sample for sample in read if sample.sample_id.startswith("row_shards")]
    assert min(shard.table.pooling_factor for sample in row_shards for shard in sample.shards) < 0.5
    replicas = {sample.batch_size for sample in read if sample.sample_id.startswith("replicas")}
    assert replicas <= {16 // 2, 16 // 8, 64 // 2, 64 // 8}


@pytest.mark.parametrize("in_rows", [0.0, 1.0])
def test_similar_tables_are_neighbours(pool, variation, in_rows):
    samples, _ = varied_samples(
        pool,
        COMPUTE,
        variation,
        VariedSampleParams(**VARIED | {"similar_tables_share": 1.0, "similar_rows_share": in_rows}),
    )
    allowed = pool[is_derived(pool["table"]) & ~pool["held_out"]].set_index("table")
    kinds = ["batch_size", "data_type", "default_profile"]
    in_between = []
    for _, rows in samples.groupby("sample_id"):
        group = allowed[(allowed[kinds] == allowed.loc[rows["table"].iloc[0], kinds]).all(axis=1)]
        chosen = allowed.loc[rows["table"]]
        low, high = chosen["pooling_factor"].min(), chosen["pooling_factor"].max()
        assert group["pooling_factor"].between(low, high, inclusive="neither").sum() <= 2 * len(rows) - 2
        if low == high:
            same = group.loc[group["pooling_factor"] == low, "num_embeddings"]
            fewest, most = chosen["num_embeddings"].min(), chosen["num_embeddings"].max()
            in_between.append(same.between(fewest, most, inclusive="neither").sum() - (2 * len(rows) - 2))
    assert in_between
    if in_rows:
        assert max(in_between) <= 0


def test_more_samples_do_not_change_the_first_ones(pool, drawn, variation):
    few, _ = varied_samples(pool, COMPUTE, variation, VariedSampleParams(**{**VARIED, "num_samples": 7}))
    pd.testing.assert_frame_equal(drawn[0].iloc[: len(few)], few)


def test_comm_samples_use_generated_tables_only(pool, generated):
    comm = CommSampleParams(
        num_samples=5, batch_size=64, world_sizes=(2,), dimensions=(4, 8), min_tables_per_4_ranks=2,
        max_tables_per_4_ranks=4, max_start_skew_ms=1.0, seed=0,
    )  # fmt: skip
    pd.testing.assert_frame_equal(comm_samples(pool, comm), comm_samples(generated, comm))


@pytest.mark.parametrize(
    "change",
    [{"interpolation_batch_size": 64}, {"interpolation_batch_size": 8}, {"extrapolation_batch_size": 64},
     {"batch_sizes": (16, 16)}, {"row_factors": (2.0, 1.0)}, {"small_table_rows": (0.0, 1.0)}, {"held_out_share": 0.0}],
)  # fmt: skip
def test_impossible_variations_are_refused(change):
    with pytest.raises(ValidationError):
        VariationParams(**{**VARIATION, **change})


def test_a_table_is_spread_over_at_least_two_ranks():
    with pytest.raises(ValidationError, match="greater than or equal to 2"):
        VariedSampleParams(**{**VARIED, "spread_world_sizes": (1, 2)})


def test_every_width_needs_a_weight():
    with pytest.raises(ValidationError, match="one number"):
        VariedSampleParams(**{**VARIED, "dimension_weights": (1.0,)})

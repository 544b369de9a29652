"""Prices decide where tables are cut into tiers: where a popularity curve has the slope at which a copy pays off."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from row_popularity import POPULARITIES, row_popularity
from sequence_draws import SequenceIds, sequence_tables

from neuroshard_pipeline.search.memory import MemoryModel
from neuroshard_pipeline.search.problem import Problem
from neuroshard_pipeline.search.tier_prices import CutFamily, TierPrices, cuttable_tables, tier_prices
from neuroshard_pipeline.tables.constraints import Constraints, TableConstraint
from neuroshard_pipeline.tables.id_batches import counted
from neuroshard_pipeline.tables.popularity import curve_of_profile
from neuroshard_pipeline.tables.task import ShardingTask
from neuroshard_pipeline.tables.tiers import cuts_of
from search.settings import WEIGHTS_AND_OPTIMIZER
from search.small_step import step_models

MEMORY: MemoryModel = WEIGHTS_AND_OPTIMIZER
PRICES = TierPrices(id_ms=1e-7, exchanged_ms=1e-7, on_host_ms=2e-8, hot_ms=1e-6, host_ms=1e-7)


def sequence_task(popularity="published", hosts=2, count=3, **options) -> ShardingTask:
    lengths, widths = [50, 20, 100][:count], [64, 32, 128][:count]
    tables = sequence_tables(popularity, lengths, widths, [10**6, 10**5, 3 * 10**6][:count], 4096)
    return ShardingTask(tables, 8, 4096, 2**40, local_world_size=8 // hosts, tiers=True, **options)


def family_of(task: ShardingTask, prices: TierPrices = PRICES) -> CutFamily:
    return CutFamily(task, cuttable_tables(task), prices)


prices_of_rows = st.floats(1e-4, 1e4)


@given(st.sampled_from(POPULARITIES), prices_of_rows, prices_of_rows, st.booleans())
def test_tiers_shrink_as_their_rows_get_dearer(popularity, price, more, index_dedup):
    family = family_of(sequence_task(popularity, index_dedup=index_dedup))
    cheap, dear = (family.cuts(each, each) for each in sorted((price, price * (1 + more))))
    assert set(dear) <= set(cheap)
    for name, cuts in dear.items():
        assert cuts.hot_rows <= cheap[name].hot_rows
        # A host tier is rounded to whole rows per rank.
        assert cuts.hot_rows + cuts.host_rows <= cheap[name].hot_rows + cheap[name].host_rows + 3
    for table in family.task.tables:
        cuts = cheap.get(table.name)
        assert cuts is None or cuts.hot_rows + cuts.host_rows <= table.num_embeddings


def near(rows, curve, best):
    """Whether `rows` is in one of the two segments of the curve that meet at `best`.

    The costs of the tests count all rows of a segment as equally popular, so that only ends of segments can be best.
    """
    at = int(np.abs(curve.rows - best).argmin())
    return curve.rows[max(at - 1, 0)] - 4 <= rows <= curve.rows[min(at + 1, len(curve.rows) - 1)] + 4


def test_a_row_is_hot_if_its_ids_pay_for_its_gradient():
    task = sequence_task(hosts=1)
    found = family_of(task).cuts(1.0, None)
    for table in task.tables:
        curve = curve_of_profile(table, task.batch_size)
        ids = task.batch_size * table.pooling_factor
        saved_ms = PRICES.id_ms + table.embedding_dim * PRICES.exchanged_ms
        rows = np.arange(1, table.num_embeddings + 1)
        net_ms = ids * curve.share_of(rows) * saved_ms - rows * table.embedding_dim * PRICES.hot_ms
        assert found[table.name].host_rows == 0
        assert near(found[table.name].hot_rows, curve, rows[net_ms.argmax()])


def test_cuts_with_host_tiers_have_the_lowest_cost():
    """The cuts for the unchanged prices are compared with the best pair of ends of segments of the curve."""
    task = sequence_task(hosts=2)
    found = family_of(task).cuts(1.0, 1.0)
    for table in task.tables:
        curve, width = curve_of_profile(table, task.batch_size), table.embedding_dim
        ids = task.batch_size * table.pooling_factor
        rows = curve.rows
        hot, upto = np.meshgrid(rows, rows, indexing="ij")
        shares = curve.share_of(rows)
        in_hot, in_both = np.meshgrid(shares, shares, indexing="ij")
        on_host_ms = PRICES.id_ms + width * PRICES.on_host_ms
        sent_ms = ids * (in_both - in_hot) * on_host_ms + ids * (1 - in_both) * (
            PRICES.id_ms + width * PRICES.exchanged_ms
        )
        total_ms = sent_ms + width * (hot * PRICES.hot_ms + (upto - hot) * PRICES.host_ms)
        total_ms[upto < hot] = np.inf
        best = np.unravel_index(total_ms.argmin(), total_ms.shape)
        cuts = found[table.name]
        assert near(cuts.hot_rows, curve, rows[best[0]])
        assert near(cuts.hot_rows + cuts.host_rows, curve, rows[best[1]])


@pytest.mark.parametrize("popularity", POPULARITIES)
def test_cuts_between_ends_of_segments_follow_the_price_smoothly_up_to_the_last_segment(popularity):
    table = family_of(sequence_task(popularity)).tables[0]
    middle = (np.append(0.0, table.rows[:-2]) + table.rows[:-1]) / 2
    assert [table.rows_with(ids) for ids in table.ids[:-1]] == pytest.approx(middle.tolist(), abs=2)
    between = np.geomspace(table.ids[0], table.ids[-2], 500)
    rows = np.array([table.rows_with(ids) for ids in between])
    assert (np.diff(rows) >= 0).all()
    assert len(np.unique(rows)) > 100
    assert table.rows_with(1.01 * table.ids[-1]) <= table.rows[-2]
    assert table.rows_with(table.ids[-1]) == table.table.num_embeddings


def test_with_dedup_no_row_saves_more_ids_than_there_are_ranks():
    for plain, once in zip(
        family_of(sequence_task()).tables, family_of(sequence_task(index_dedup=True)).tables, strict=True
    ):
        assert (once.ids <= np.minimum(plain.ids, 8) + 1e-9).all()
        assert (np.diff(once.ids) <= 1e-9).all()


def test_tables_whose_constraints_forbid_a_tier_are_left_out():
    first, second, third = (table.name for table in sequence_task().tables)
    own = [TableConstraint(first, sharding_types=("row_wise",)), TableConstraint(second, forbidden_ranks=(0,))]
    constraints = Constraints(tables=own)
    family = family_of(sequence_task(constraints=constraints))
    assert [each.table.name for each in family.tables] == [third]


def test_all_rows_of_a_table_may_be_popular():
    family = family_of(sequence_task())
    for host_price in (None, 1e-4):
        cuts = family.cuts(1e-4 if host_price is None else 1e9, host_price)
        assert {name: own.hot_rows + own.host_rows for name, own in cuts.items()} == {
            table.name: table.num_embeddings for table in family.task.tables
        }
        variant = family.variant(cuts)
        assert all(table.tier.kind != "cold" for table in variant.tables)
        assert all(own.host_rows % 4 == 0 for own in cuts.values())


@pytest.mark.parametrize("host_price", [None, 1.0])
@pytest.mark.parametrize(
    "prices", [replace(PRICES, id_ms=0.0, exchanged_ms=0.0, on_host_ms=0.0), TierPrices(*[0.0] * 5)]
)
def test_no_row_is_popular_if_its_exchange_costs_nothing(prices, host_price):
    """A fitted price may be 0: that of an id if the input dist is hidden, that of a float if few are sent."""
    assert family_of(sequence_task(), prices).cuts(1.0, host_price) == {}


def test_no_row_is_hot_at_an_infinite_price_even_if_a_hot_row_costs_no_more_than_a_host_row():
    cuts = family_of(sequence_task(), replace(PRICES, hot_ms=PRICES.host_ms)).cuts(np.inf, 1.0)
    assert cuts
    assert all(own.hot_rows == 0 and own.host_rows > 0 for own in cuts.values())


def test_tables_of_half_precision_are_left_out():
    task = sequence_task()
    half = replace(task, tables=[replace(task.tables[0], data_type="fp16"), *task.tables[1:]])
    assert [each.table.name for each in cuttable_tables(half)] == [table.name for table in task.tables[1:]]


def test_a_variant_has_the_cuts_of_the_family():
    family = family_of(sequence_task())
    cuts = family.cuts(0.5, 0.5)
    assert cuts_of(family.variant(cuts)) == dict(cuts)
    assert family.variant({}) is family.task


class LinearComm:
    """A float that each of n ranks sends for each of B samples takes n * B * 1e-9 ms forward, twice that backward."""

    def forward_ms(self, dim_sums, start_skew_ms, batch_size):
        return 1e-9 * dim_sums.shape[-1] * batch_size * dim_sums + start_skew_ms

    def backward_ms(self, dim_sums, batch_size):
        return 2e-9 * dim_sums.shape[-1] * batch_size * dim_sums


@pytest.mark.parametrize("hosts", [1, 2])
@pytest.mark.parametrize("comm_precision", ["fp32", "fp16"])
def test_prices_come_from_the_models(hosts, comm_precision):
    task = sequence_task(hosts=hosts, comm_precision=comm_precision)
    models = replace(step_models(), comm=LinearComm())
    found = tier_prices(Problem(task, models, MEMORY))
    exchanged_ms = 3e-9 if comm_precision == "fp32" else 1.5e-9
    reduced_ms = 4 * 0.2 / 2**20 * (1 - 1 / 8) * (4 if hosts > 1 else 1)  # 4 bytes; see `small_step_model`
    assert found.id_ms == pytest.approx((1.0 + 1.0) / 1e6 / 8)  # mean of 8 ranks: one id sent, and one id received
    assert found.exchanged_ms == pytest.approx(exchanged_ms)
    assert found.on_host_ms == pytest.approx(exchanged_ms / hosts)  # hosts exchange their samples at the same time
    assert found.hot_ms == pytest.approx(1.0 / 1e6 + reduced_ms)
    assert found.host_ms == pytest.approx(0.0 if hosts == 1 else 1.0 / 1e6 / 4 + reduced_ms)


def test_ids_of_more_batches_allow_deeper_cuts_that_later_ids_confirm():
    """A row with at least 1.25 ids per step is worth a copy on every host. One batch does not show these rows."""
    batch_size, rows = 512, 50_000
    (table,) = sequence_tables("published", [40], [64], [rows], batch_size)
    source = SequenceIds(table, row_popularity("published", rows))
    popular, later = source.popular_rows(rows), source.draw(64 * batch_size, seed=99).indices
    place = np.empty(rows, dtype=np.int64)
    place[popular] = np.arange(rows)
    found = {}
    for number in (1, 16):
        batches = [source.draw(batch_size, seed).indices for seed in range(number)]
        task = ShardingTask([counted(table, batches, batch_size)], 8, batch_size, 2**40, local_world_size=4, tiers=True)
        family = family_of(task)
        (cuts,) = family.cuts(1.0, 1.0).values()
        found[number] = cuts.hot_rows + cuts.host_rows
        cold = family.variant({table.name: cuts}).tables[-1]
        assert (place[later] < found[number]).mean() >= 1.0 - cold.pooling_factor / table.pooling_factor - 0.005
    (profile_alone,) = (
        family_of(replace(task, tables=[replace(task.tables[0], popularity=None)])).cuts(1.0, 1.0).values()
    )
    assert found[16] > 1.3 * max(found[1], profile_alone.hot_rows + profile_alone.host_rows)

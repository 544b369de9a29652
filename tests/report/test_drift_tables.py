"""Text about a plan with tiers that is priced on the ids of another day: two tables of text and a verdict."""

from dataclasses import replace
from types import SimpleNamespace

from neuroshard_pipeline.evaluation.other_day import TierShares
from neuroshard_pipeline.evaluation.popularity_drift import Drift, Recut
from neuroshard_pipeline.report.drift_tables import drift_text, recut_rows, share_rows
from neuroshard_pipeline.tables.tiers import Cuts


def a_plan(cost_ms):
    return SimpleNamespace(predicted_cost_ms=cost_ms)


def a_drift(pays_after):
    cuts, before, after = {"words": Cuts(1_000, 20_000)}, TierShares(0.5, 0.3, 0.2), TierShares(0.2, 0.1, 0.7)
    recut = Recut("same cuts", a_plan(4.0), cuts, {"words": before}, 2.5e9, 31.0, 1.0, pays_after)
    slower = Recut("new plan", a_plan(5.5), cuts, {"words": before}, 2.6e9, 32.0, -0.5, None)
    return Drift(a_plan(3.9), {"words": before}, a_plan(5.0), {"words": after}, cuts, (recut, slower))


def test_shares_of_both_days_stand_side_by_side():
    assert share_rows(a_drift(31.0))[1] == [
        *("words", "1,000", "20,000", "50 %", "30 %", "20 %"),
        *("20 %", "10 %", "70 %"),
    ]


def test_every_way_to_cut_again_has_a_row():
    rows = recut_rows(a_drift(31.0))
    assert rows[3] == ["same cuts, other day", "4.000", "2,500.0", "31.0", "1.000", "31"]
    assert rows[4] == ["new plan, other day", "5.500", "2,600.0", "32.0", "-0.500", "not worth it"]


def test_the_verdict_names_the_way_that_pays_first():
    """The new plan saves less per step, but moves so few bytes that it pays after 20 steps."""
    drift = a_drift(31.0)
    later, shares = drift.recuts[0], drift.planned_shares
    sooner = Recut("new plan", a_plan(4.5), drift.cuts, shares, 1.5e9, 10.0, 0.5, 20.0)
    for recuts in ((later, sooner), (sooner, later)):
        assert "Cut again (new plan): moving 1,500 MB" in drift_text(replace(drift, recuts=recuts))


def test_the_verdict_states_what_cutting_again_takes_and_saves():
    assert "Cut again (same cuts): moving 2,500 MB takes 31.0 ms once" in drift_text(a_drift(31.0))
    assert "predicted to take 20 % less." in drift_text(a_drift(31.0))
    assert "not worth it:" in drift_text(a_drift(None))

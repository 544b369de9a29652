"""Text about a plan with tiers (blocks of rows by popularity) on the ids of another day."""

from neuroshard_pipeline.evaluation.other_day import TierShares
from neuroshard_pipeline.evaluation.popularity_drift import Drift, Recut
from neuroshard_pipeline.report.formats import MISSING, amount, fixed, percent
from neuroshard_pipeline.report.terminal import aligned_table

_BYTES_PER_MB = 1e6


def drift_text(drift: Drift) -> str:
    """A table of the shares of the ids per tier, a table of the ways to cut again, and a verdict."""
    return "\n\n".join([aligned_table(share_rows(drift)), aligned_table(recut_rows(drift)), verdict(drift)])


def share_rows(drift: Drift) -> list[list[str]]:
    """Header and one row per table with tiers."""
    rows = [["table", "hot rows", "host rows", "ids as planned: hot", "host", "cold", "other day: hot", "host", "cold"]]
    for name, cuts in drift.cuts.items():
        counts = [f"{count:,}" for count in (cuts.hot_rows, cuts.host_rows)]
        rows.append([name, *counts, *_cells(drift.planned_shares[name]), *_cells(drift.shares[name])])
    return rows


def recut_rows(drift: Drift) -> list[list[str]]:
    """Header, the plan on both days, and one row per way to cut again."""
    header = ["plan, day of the ids", "predicted step ms", "moved MB", "ms to move"]
    rows = [[*header, "saved ms per step", "pays after steps"]]
    rows.append(["as planned, planned day", fixed(drift.plan.predicted_cost_ms, 3), *[MISSING] * 4])
    rows.append(["as planned, other day", fixed(drift.drifted.predicted_cost_ms, 3), *[MISSING] * 4])
    for recut in drift.recuts:
        pays = "not worth it" if recut.pays_after is None else fixed(recut.pays_after, 0)
        moved = fixed(recut.moved_bytes / _BYTES_PER_MB, 1)
        cost = fixed(recut.plan.predicted_cost_ms, 3)
        rows.append([f"{recut.name}, other day", cost, moved, fixed(recut.move_ms, 1), fixed(recut.saved_ms, 3), pays])
    return rows


def verdict(drift: Drift) -> str:
    """Whether to cut again, and in which way."""
    best = drift.worth_it
    if best is None:
        return "Cutting the tiers again is not worth it: no way saves enough time before popularity changes again."
    before = drift.drifted.predicted_cost_ms
    share = MISSING if not before else percent(best.saved_ms / before)
    return (
        f"Cut again ({best.name}): moving {_moved(best)} takes {amount(best.move_ms)} ms once, and every step is "
        f"predicted to take {share} less."
    )


def _moved(recut: Recut) -> str:
    return f"{amount(recut.moved_bytes / _BYTES_PER_MB)} MB"


def _cells(shares: TierShares) -> list[str]:
    return [percent(share) for share in (shares.hot, shares.host, shares.cold)]

"""From raw shards to costs: pure functions of what a campaign recorded."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime

import numpy as np
import pandas as pd

from neuroshard_pipeline.errors import MeasurementError
from neuroshard_pipeline.measurement.protocol import Timing, VisitStatistic
from neuroshard_pipeline.measurement.stretches import AnySample, Stretch, digest

#: Shards by key: frames, or functions that load one (as a partitioned dataset gives them).
Shards = Mapping[str, pd.DataFrame | Callable[[], pd.DataFrame]]

#: Columns of a raw shard: one row per visit of a sample and rank. `digest` names the sample's content, `saved_at` is
#: when the stretch was over (ISO 8601, UTC).
RAW_COLUMNS = (
    "sample_id", "digest", "replica", "rank", "forward_ms", "backward_ms", "probe_ms", "seconds", "error", "saved_at",
)  # fmt: skip
_LOWER_QUARTILE = 0.25
_COMPARED = {
    "forward": ["forward_ms"],
    "backward": ["backward_ms"],
    "total": ["forward_ms", "backward_ms"],
}


def raw_shard(
    samples: Sequence[AnySample], stretch: Stretch, timings_by_rank: Sequence[Sequence[Timing]]
) -> pd.DataFrame:
    """What a stretch recorded: `RAW_COLUMNS`, one row per rank and visited sample."""
    rows = [
        (samples[index].sample_id, digest(samples[index]), stretch.replica, rank, *timing)
        for rank, of_rank in enumerate(timings_by_rank)
        for index, timing in zip(stretch.indices, of_rank, strict=True)
    ]
    frame = pd.DataFrame(rows, columns=list(RAW_COLUMNS[:-1])).astype({"error": object})
    return frame.assign(saved_at=datetime.now(UTC).isoformat(timespec="seconds"))


def load_rows(shards: Shards, campaign: str) -> pd.DataFrame:
    """All rows of one campaign, `RAW_COLUMNS` and `key`, in the order of the keys."""
    frames = [loaded(shards[key]).assign(key=key) for key in sorted(shards) if key.startswith(f"{campaign}/")]
    if not frames:
        return pd.DataFrame(columns=[*RAW_COLUMNS, "key"])
    return pd.concat(frames, ignore_index=True)


def reduce_rows(
    rows: pd.DataFrame, samples: Sequence[AnySample], statistic: VisitStatistic, replica: bool = False
) -> pd.DataFrame:
    """Costs of every sample and rank from all its visits.

    The cost is the lower quartile, the smallest or the median of the visits, forward and backward apart; `spread_ms`
    is how far the best quarter of the visits reaches above the best one (forward + backward), null where only one
    visit succeeded.

    Args:
        rows: of one campaign.
        samples: what to reduce; rows of other samples, or of these before they changed, are left out.
        statistic: how visits become a cost (`TimingProtocol.visit_statistic`).
        replica: reduce the independent second measurements instead; samples without one are then left out.

    Returns:
        `sample_id, rank, forward_ms, backward_ms, spread_ms, repeats, error` in the order of samples and ranks;
        a sample of which no visit succeeded has an error and no costs.

    Raises:
        MeasurementError: a sample was never measured.
    """
    wanted = pd.DataFrame(
        {
            "order": range(len(samples)),
            "sample_id": [s.sample_id for s in samples],
            "digest": [digest(s) for s in samples],
        }
    )
    rows = rows[rows["replica"].astype(bool) == replica].merge(wanted, on=["sample_id", "digest"])
    missing = set(wanted["order"]) - set(rows["order"])
    if missing and not replica:
        raise MeasurementError(
            f"{len(missing)} of {len(samples)} samples were never measured (first: "
            f"{samples[min(missing)].sample_id}); run the campaign to its end, it resumes where it stopped"
        )
    by_rank = ["order", "sample_id", "rank"]
    good = rows[rows["error"].isna()]
    total = good["forward_ms"].astype(float) + good["backward_ms"].astype(float)
    grouped = good.assign(total_ms=total).groupby(by_rank)
    directions = grouped[["forward_ms", "backward_ms"]]
    costs = directions.quantile(_LOWER_QUARTILE) if statistic == "lower_quartile" else directions.agg(statistic)
    costs["spread_ms"] = grouped["total_ms"].quantile(_LOWER_QUARTILE) - grouped["total_ms"].min()
    costs["repeats"] = grouped.size()
    costs.loc[costs["repeats"] < 2, "spread_ms"] = np.nan
    errors = rows[rows["error"].notna()].groupby(by_rank)["error"].first()
    frame = costs.reindex(costs.index.union(errors.index)).sort_index()
    frame["error"] = errors[~errors.index.isin(costs.index)].reindex(frame.index).astype(object)
    frame["error"] = frame["error"].where(frame["error"].notna(), None)
    frame["repeats"] = frame["repeats"].fillna(0).astype("int64")
    return frame.reset_index().drop(columns="order")


def relative_disagreement(
    rows: pd.DataFrame, samples: Sequence[AnySample], statistic: VisitStatistic
) -> dict[str, object]:
    """The noise floor: how far two independent measurements of the same samples lie apart.

    Returns:
        `samples` (how many were measured twice) and, for `forward`, `backward` and `total`, the `median` and the
        90th percentile `p90` of |a - b| / mean(a, b) over samples and ranks; null where nothing was measured twice.
    """
    both = reduce_rows(rows, samples, statistic).merge(
        reduce_rows(rows, samples, statistic, replica=True), on=["sample_id", "rank"], suffixes=("", "_again")
    )
    both = both[both["error"].isna() & both["error_again"].isna()]
    floor: dict[str, object] = {"samples": int(both["sample_id"].nunique())}
    for name, columns in _COMPARED.items():
        first = both[columns].astype(float).sum(axis=1)
        second = both[[f"{column}_again" for column in columns]].astype(float).sum(axis=1).to_numpy()
        apart = ((first - second).abs() / ((first + second) / 2)).to_numpy()
        median, p90 = (float(np.quantile(apart, q)) if len(apart) else None for q in (0.5, 0.9))
        floor[name] = {"median": median, "p90": p90}
    return floor


def no_disagreement() -> dict[str, object]:
    """The noise floor of costs that nothing was measured for: as `relative_disagreement`, every value null."""
    return {"samples": 0, **{name: {"median": None, "p90": None} for name in _COMPARED}}


def loaded(shard: pd.DataFrame | Callable[[], pd.DataFrame]) -> pd.DataFrame:
    """The frame of a shard that may still have to be read."""
    return shard if isinstance(shard, pd.DataFrame) else shard()

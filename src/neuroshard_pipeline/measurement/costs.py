"""Reduces the records of a campaign to costs and a noise floor.

A campaign times each of its samples in several visits. The noise floor is the relative difference between
two independent measurements of the same sample.
"""

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import NamedTuple

import numpy as np
import pandas as pd

from neuroshard_pipeline.errors import MeasurementError
from neuroshard_pipeline.measurement.chunks import AnySample, Chunk, digest
from neuroshard_pipeline.measurement.params import VisitStatistic
from neuroshard_pipeline.measurement.timing import Timing

#: Records by key: frames, or functions that load a frame (as a partitioned dataset gives them).
Records = Mapping[str, pd.DataFrame | Callable[[], pd.DataFrame]]

#: Columns of a record: one row per visit of a sample and rank. `digest` is a hash of the sample's content; `replica`
#: tells whether the visit belongs to the second measurement for the noise floor; for `permanent` see `Timing`;
#: `saved_at` is the time at which the record was finished (ISO 8601, UTC); `other_programs` is the share of this
#: machine's cores that other programs used meanwhile; `identity` is that of the campaign, as JSON.
RAW_COLUMNS = (
    "sample_id", "digest", "replica", "rank", "forward_ms", "backward_ms", "seconds", "error", "permanent", "saved_at",
    "other_programs", "identity",
)  # fmt: skip
#: Columns that are added to the rows of a record when it is finished.
_OF_RECORD = 3
_LOWER_QUARTILE = 0.25
_BY_RANK = ["order", "sample_id", "rank"]
_COMPARED = {"forward": ["forward_ms"], "backward": ["backward_ms"], "total": ["forward_ms", "backward_ms"]}


class CampaignSummary(NamedTuple):
    """What is known about a finished campaign besides its costs; its date is the time of the last visit (UTC).

    Date and `other_programs` (`other_programs_share`) are None if nothing was measured; the latter also on GPUs.
    """

    date: str | None
    noise_floor: dict[str, object]
    other_programs: float | None = None


def make_record(
    samples: Sequence[AnySample], chunk: Chunk, timings_by_rank: Sequence[Sequence[Timing]]
) -> pd.DataFrame:
    """The record of a chunk: `RAW_COLUMNS` up to `saved_at`, one row per rank and sample."""
    rows = [
        (samples[index].sample_id, digest(samples[index]), chunk.replica, rank, *timing)
        for rank, timings in enumerate(timings_by_rank)
        for index, timing in zip(chunk.indices, timings, strict=True)
    ]
    frame = pd.DataFrame(rows, columns=list(RAW_COLUMNS[:-_OF_RECORD])).astype({"error": object})
    return frame.assign(saved_at=datetime.now(UTC).isoformat(timespec="seconds"))


def load_rows(records: Records, campaign: str) -> pd.DataFrame:
    """All rows of one campaign, ordered by the key of their record, with the columns `RAW_COLUMNS` and `key`."""
    frames = [loaded(records[key]).assign(key=key) for key in sorted(records) if key.startswith(f"{campaign}/")]
    if not frames:
        return pd.DataFrame(columns=[*RAW_COLUMNS, "key"])
    # A record of an older version lacks the newest columns.
    return pd.concat(frames, ignore_index=True).reindex(columns=[*RAW_COLUMNS, "key"])


def loaded(record: pd.DataFrame | Callable[[], pd.DataFrame]) -> pd.DataFrame:
    """The frame of a record; it is loaded if `record` is a function."""
    return record if isinstance(record, pd.DataFrame) else record()


def reduce_rows(
    rows: pd.DataFrame, samples: Sequence[AnySample], statistic: VisitStatistic, replica: bool = False
) -> pd.DataFrame:
    """Reduce all visits of every sample and rank to a cost.

    Args:
        rows: rows of one campaign (`load_rows`).
        samples: samples to reduce; rows of other samples, or of samples whose content has changed, are ignored.
        statistic: reduces the visits to a cost, separately for forward and backward
            (`CampaignParams.visit_statistic`).
        replica: reduce the second, independent measurements instead, and leave out samples that have none.

    Returns:
        `sample_id, rank, forward_ms, backward_ms, spread_ms, repeats, error` in the order of samples and ranks.
        `spread_ms` describes the sums forward + backward of the visits: their lower quartile minus their minimum, null
        with fewer than two successful visits. A sample without a successful visit has an error and no costs; the error
        also says whether another run may succeed.

    Raises:
        MeasurementError: a sample was never measured.
    """
    rows = _rows_of(rows[rows["replica"].astype(bool) == replica], samples, may_miss=replica)
    good = rows[rows["error"].isna()]
    total_ms = good[["forward_ms", "backward_ms"]].astype(float).sum(axis=1)
    grouped = good.assign(total_ms=total_ms).groupby(_BY_RANK)
    directions = grouped[["forward_ms", "backward_ms"]]
    costs = directions.quantile(_LOWER_QUARTILE) if statistic == "lower_quartile" else directions.agg(statistic)
    costs["spread_ms"] = grouped["total_ms"].quantile(_LOWER_QUARTILE) - grouped["total_ms"].min()
    costs["repeats"] = grouped.size()
    costs.loc[costs["repeats"] < 2, "spread_ms"] = np.nan
    errors = _newest_errors(rows)
    frame = costs.reindex(costs.index.union(errors.index)).sort_index()
    frame["error"] = errors[~errors.index.isin(costs.index)].reindex(frame.index).astype(object)
    frame["error"] = frame["error"].where(frame["error"].notna(), None)
    frame["repeats"] = frame["repeats"].fillna(0).astype("int64")
    return frame.reset_index().drop(columns="order")


def _newest_errors(rows: pd.DataFrame) -> pd.Series:
    """The error of the last failed visit of every sample and rank, and whether another run may succeed."""
    failed = rows[rows["error"].notna()].sort_values("saved_at", ascending=False, kind="stable")
    outlook = (
        failed["permanent"].astype(bool).map({True: "; it fails in every run", False: "; another run may succeed"})
    )
    return failed.assign(error=failed["error"].astype(str) + outlook.astype(str)).groupby(_BY_RANK)["error"].first()


def _rows_of(rows: pd.DataFrame, samples: Sequence[AnySample], may_miss: bool) -> pd.DataFrame:
    """The rows of the given samples, with the position of the sample in the column `order`."""
    names, contents = [sample.sample_id for sample in samples], [digest(sample) for sample in samples]
    wanted = pd.DataFrame({"order": range(len(samples)), "sample_id": names, "digest": contents})
    rows = rows.merge(wanted, on=["sample_id", "digest"])
    missing = set(wanted["order"]) - set(rows["order"])
    if missing and not may_miss:
        raise MeasurementError(
            f"{len(missing)} of {len(samples)} samples were never measured (first: {names[min(missing)]}); "
            "run the campaign again; it resumes where it stopped"
        )
    return rows


def relative_disagreement(
    rows: pd.DataFrame, samples: Sequence[AnySample], statistic: VisitStatistic
) -> dict[str, object]:
    """The noise floor: the relative difference between two independent measurements of the same samples.

    Returns:
        `samples` is the number of samples that were measured twice. `forward`, `backward` and `total` each contain the
        `median` and the 90th percentile `p90` of |a - b| / mean(a, b) over samples and ranks; both are null if no
        sample was measured twice.
    """
    both = reduce_rows(rows, samples, statistic).merge(
        reduce_rows(rows, samples, statistic, replica=True), on=["sample_id", "rank"], suffixes=("", "_again")
    )
    both = both[both["error"].isna() & both["error_again"].isna()]
    floor: dict[str, object] = {"samples": int(both["sample_id"].nunique())}
    for name, columns in _COMPARED.items():
        first = both[columns].astype(float).sum(axis=1)
        second = both[[f"{column}_again" for column in columns]].astype(float).sum(axis=1).to_numpy()
        difference = ((first - second).abs() / ((first + second) / 2)).dropna().to_numpy()
        median, p90 = (float(np.quantile(difference, q)) if len(difference) else None for q in (0.5, 0.9))
        floor[name] = {"median": median, "p90": p90}
    return floor


def other_programs_share(rows: pd.DataFrame, samples: Sequence[AnySample]) -> float | None:
    """Share of the cores that other programs used while the samples were measured, 0 to 1.

    The lower quartile of the visits of every sample and rank counts, as for costs; the result is the mean over samples
    and ranks. It is None if no record states the share; records of older versions do not.
    """
    rows = _rows_of(rows[rows["error"].isna()], samples, may_miss=True)
    share = rows.assign(share=rows["other_programs"].astype(float)).groupby(_BY_RANK)["share"].quantile(_LOWER_QUARTILE)
    return None if pd.isna(share.mean()) else float(share.mean())


def no_disagreement() -> dict[str, object]:
    """The result of `relative_disagreement` for no measurements: 0 samples, and null for all other values."""
    return {"samples": 0, **{name: {"median": None, "p90": None} for name in _COMPARED}}

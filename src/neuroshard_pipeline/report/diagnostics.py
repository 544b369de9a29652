"""Errors of the cost models on held-out samples, by predicted cost."""

import numpy as np
import pandas as pd

from neuroshard_pipeline.cost_models.metrics import kendall_tau


def buckets(rows: pd.DataFrame, column: str, count: int) -> pd.Series:
    """Bucket number of every row. At most `count` buckets by `column`, of about equal size; equal values share one."""
    ranks = rows[column].rank(method="dense")
    return pd.qcut(ranks, min(count, max(int(ranks.nunique()), 1)), labels=False, duplicates="drop")


def calibration_rows(held_out: pd.DataFrame, count: int = 5) -> pd.DataFrame:
    """Held-out costs in buckets of predicted cost, for every model that has prediction intervals.

    Returns:
        One row per model and bucket: `model`; `predicted_ms`, the median of the bucket; `ratio`, the median of
        measured / predicted cost, with its quartiles `ratio_low, ratio_high`; `coverage`, the share of measurements
        inside the prediction interval, with its standard error `coverage_error`; `tau`, Kendall's τ (NaN in buckets
        with fewer than 5 costs); `samples`, the number of costs (of a communication sample, one per rank).
    """
    known = held_out.dropna(subset=["low_ms", "high_ms"])
    known = known[(known["measured_ms"] > 0) & (known["predicted_ms"] > 0)]
    lines = []
    for model, rows in known.groupby("model", sort=False):
        for _, bucket in rows.groupby(buckets(rows, "predicted_ms", count)):
            lines.append({"model": model, **_calibration_of(bucket)})
    return pd.DataFrame(lines)


def _calibration_of(rows: pd.DataFrame) -> dict[str, float]:
    ratio = rows["measured_ms"] / rows["predicted_ms"]
    inside = float(((rows["measured_ms"] >= rows["low_ms"]) & (rows["measured_ms"] <= rows["high_ms"])).mean())
    return {
        "predicted_ms": float(rows["predicted_ms"].median()),
        "ratio": float(ratio.median()),
        "ratio_low": float(ratio.quantile(0.25)),
        "ratio_high": float(ratio.quantile(0.75)),
        "coverage": inside,
        "coverage_error": float(np.sqrt(max(inside * (1 - inside), 0.0) / len(rows))),
        "tau": kendall_tau(rows["measured_ms"], rows["predicted_ms"]) if len(rows) >= 5 else np.nan,
        "samples": len(rows),
    }

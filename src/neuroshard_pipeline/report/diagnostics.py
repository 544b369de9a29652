"""Errors of the cost models on held-out samples: by sample property, by predicted cost, and the largest errors."""

import numpy as np
import pandas as pd

from neuroshard_pipeline.cost_models.metrics import kendall_tau
from neuroshard_pipeline.report.formats import decimals_for, fixed

#: Properties of a compute sample and their names in figures. All values are positive.
PROPERTIES = {
    "predicted_ms": "predicted cost, ms",
    "tables": "number of tables",
    "mean_dim": "mean embedding dimension",
    "mean_pooling": "mean pooling factor",
    "rows": "rows of all tables",
}


def compute_errors(held_out: pd.DataFrame, compute_samples: pd.DataFrame, table_pool: pd.DataFrame) -> pd.DataFrame:
    """Held-out compute samples (forward + backward) with their properties and their relative `error`.

    The error is predicted / measured - 1; it is negative if the prediction is too low. The properties of a sample of
    row shards or replicas are those of its whole tables.
    """
    known = table_pool[["table", "num_embeddings", "pooling_factor"]]
    grouped = compute_samples.merge(known, on="table").groupby("sample_id", sort=False)
    properties = grouped.agg(
        tables=("table", "size"),
        mean_dim=("embedding_dim", "mean"),
        mean_pooling=("pooling_factor", "mean"),
        rows=("num_embeddings", "sum"),
    )
    rows = held_out[(held_out["model"] == "compute") & (held_out["measured_ms"] > 0)]
    rows = rows.drop(columns="rank", errors="ignore").merge(properties.reset_index(), on="sample_id")
    return rows.assign(error=rows["predicted_ms"] / rows["measured_ms"] - 1.0)


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


def worst_samples(errors: pd.DataFrame, most: int = 10) -> list[list[str]]:
    """Lines of a table: a header, then compute samples with the largest relative errors of any sign, worst first."""
    worst = errors.reindex(errors["error"].abs().sort_values(ascending=False).index).head(most)
    decimals = decimals_for([*worst["measured_ms"], *worst["predicted_ms"]])
    lines = [["sample", "error", "measured ms", "predicted ms", "90 % interval, ms", *list(PROPERTIES.values())[1:]]]
    for row in worst.to_dict("records"):
        measured, predicted, low, high = (
            fixed(float(row[name]), decimals) for name in ("measured_ms", "predicted_ms", "low_ms", "high_ms")
        )
        properties = [str(row["tables"]), f"{row['mean_dim']:.0f}", f"{row['mean_pooling']:.1f}", f"{row['rows']:,}"]
        error = f"{100 * row['error']:+.1f} %"
        lines.append([str(row["sample_id"]), error, measured, predicted, f"{low} to {high}", *properties])
    return lines

"""Where the cost models err: held-out samples with their features, buckets of them, and the worst."""

from __future__ import annotations

import numpy as np
import pandas as pd

from neuroshard_pipeline.cost_models.metrics import kendall_tau
from neuroshard_pipeline.report.wording import decimals_for, number

#: Features of a compute sample, and how a figure calls them. All of them are positive.
FEATURES = {
    "predicted_ms": "predicted cost, ms",
    "tables": "number of tables",
    "mean_dim": "mean dimension",
    "mean_pooling": "mean pooling factor",
    "rows": "rows of all tables",
}

#: Fewer samples than this have no order worth a number.
_SMALLEST_BUCKET = 5


def sample_features(compute_samples: pd.DataFrame, table_pool: pd.DataFrame) -> pd.DataFrame:
    """`sample_id, tables, mean_dim, mean_pooling, rows`, one row per compute sample."""
    known = table_pool[["table", "num_embeddings", "pooling_factor"]]
    grouped = compute_samples.merge(known, on="table").groupby("sample_id", sort=False)
    return grouped.agg(
        tables=("table", "size"),
        mean_dim=("embedding_dim", "mean"),
        mean_pooling=("pooling_factor", "mean"),
        rows=("num_embeddings", "sum"),
    ).reset_index()


def compute_errors(held_out: pd.DataFrame, compute_samples: pd.DataFrame, table_pool: pd.DataFrame) -> pd.DataFrame:
    """Held-out compute samples (forward + backward) with their features and `error`, below 0 where too cheap."""
    rows = held_out[(held_out["model"] == "compute") & (held_out["measured_ms"] > 0)]
    rows = rows.drop(columns="rank", errors="ignore").merge(sample_features(compute_samples, table_pool))
    return rows.assign(error=rows["predicted_ms"] / rows["measured_ms"] - 1.0)


def buckets(rows: pd.DataFrame, column: str, count: int) -> pd.Series:
    """The number of every row's bucket: at most `count`, equally full, by rising `column`."""
    ranks = rows[column].rank(method="dense")
    return pd.qcut(ranks, min(count, max(int(ranks.nunique()), 1)), labels=False, duplicates="drop")


def calibration_rows(held_out: pd.DataFrame, count: int = 5) -> pd.DataFrame:
    """Held-out samples by predicted cost, for every model that has intervals.

    Returns:
        `model, predicted_ms` (median of the bucket), `ratio` and its quartiles `ratio_low, ratio_high` of measured to
        predicted cost, `coverage`, `coverage_error` (its standard error), `tau` (null in tiny buckets), `samples`.
    """
    known = held_out.dropna(subset=["low_ms", "high_ms"])
    known = known[(known["measured_ms"] > 0) & (known["predicted_ms"] > 0)]
    lines = []
    for model, rows in known.groupby("model", sort=False):
        for _, bucket in rows.groupby(buckets(rows, "predicted_ms", count)):
            lines.append({"model": model, **_bucket(bucket)})
    return pd.DataFrame(lines, columns=_CALIBRATION_COLUMNS)


_CALIBRATION_COLUMNS = [
    "model", "predicted_ms", "ratio", "ratio_low", "ratio_high", "coverage", "coverage_error", "tau", "samples",
]  # fmt: skip


def _bucket(rows: pd.DataFrame) -> dict[str, float]:
    ratio = rows["measured_ms"] / rows["predicted_ms"]
    inside = float(((rows["measured_ms"] >= rows["low_ms"]) & (rows["measured_ms"] <= rows["high_ms"])).mean())
    few = len(rows) < _SMALLEST_BUCKET
    return {
        "predicted_ms": float(rows["predicted_ms"].median()),
        "ratio": float(ratio.median()),
        "ratio_low": float(ratio.quantile(0.25)),
        "ratio_high": float(ratio.quantile(0.75)),
        "coverage": inside,
        "coverage_error": float(np.sqrt(max(inside * (1 - inside), 0.0) / len(rows))),
        "tau": np.nan if few else kendall_tau(rows["measured_ms"], rows["predicted_ms"]),
        "samples": len(rows),
    }


def worst_samples(errors: pd.DataFrame, most: int = 10) -> list[list[str]]:
    """Header and one line for each of the compute samples that were predicted worst, the worst first."""
    worst = errors.reindex(errors["error"].abs().sort_values(ascending=False).index).head(most)
    costs = list(worst["measured_ms"]) + list(worst["predicted_ms"])
    decimals = decimals_for([float(cost) for cost in costs])
    lines = [["sample", "error", "measured ms", "predicted ms", "90 % interval", *list(FEATURES.values())[1:]]]
    for row in worst.to_dict("records"):
        bounds = [number(float(row[name]), decimals) for name in ("low_ms", "high_ms")]
        lines.append(
            [
                str(row["sample_id"]),
                f"{100 * row['error']:+.1f} %",
                number(float(row["measured_ms"]), decimals),
                number(float(row["predicted_ms"]), decimals),
                " to ".join(bounds),
                str(row["tables"]),
                f"{row['mean_dim']:.0f}",
                f"{row['mean_pooling']:.1f}",
                f"{row['rows']:,}",
            ]
        )
    return lines

"""Which samples deserve more visits than planned: those of disturbed stretches, and those that scatter."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from neuroshard_pipeline.measurement.costs import reduce_rows
from neuroshard_pipeline.measurement.stretches import AnyParams, AnySample, Stretch, digest, group_of, rounds_of

_REGULAR, _AGAIN, _WIDE = "visit", "again", "wide"


def extra_stretches(
    rows: pd.DataFrame, samples: Sequence[AnySample], params: AnyParams, campaign: str
) -> list[Stretch]:
    """The next round of extra stretches, none where nothing needs them.

    First every regular stretch in whose course the reference probe ran `disturbed_slowdown` times slower than its
    best is measured once more, the worst first. Then the samples whose spread exceeds `wide_spread_share` of their
    cost get one more visit, the least visited first and among them the widest, until a sample has had twice the
    regular visits. The choice follows from the rows alone, so a resumed campaign goes on where it stopped.

    Args:
        rows: everything measured so far (`costs.load_rows`).
        samples: of the campaign.
        params: with the limits.
        campaign: the hash that keys start with.
    """
    return _disturbed_stretches(rows, samples, params, campaign) or _wide_stretches(rows, samples, params, campaign)


def extra_seconds(rows: pd.DataFrame) -> float:
    """Time that the extra stretches among `rows` took, summed over workers, in seconds."""
    return float(rows.loc[(_kind(rows) != _REGULAR) & (rows["rank"] == 0), "seconds"].sum())


def _kind(rows: pd.DataFrame) -> pd.Series:
    """Why each row was measured: the first word of its key's second part."""
    return rows["key"].str.split("/").str[1].str.split("-").str[0]


def _disturbed_stretches(
    rows: pd.DataFrame, samples: Sequence[AnySample], params: AnyParams, campaign: str
) -> list[Stretch]:
    known = set(rows["key"])
    regular = rows[_kind(rows) == _REGULAR]
    index_of = {digest(sample): index for index, sample in enumerate(samples)}
    group = regular["key"].str.rsplit("/").str[-1].str.split("-").str[0]
    best_ms = regular["probe_ms"].groupby(group).transform("min")
    slowdown = (regular["probe_ms"] / best_ms).groupby(regular["key"]).median()
    stretches = []
    for key in slowdown[slowdown > params.disturbed_slowdown].sort_values(ascending=False).index:
        new_key = key.replace(f"{campaign}/{_REGULAR}-", f"{campaign}/{_AGAIN}-")
        of_key = regular[(regular["key"] == key) & (regular["rank"] == 0)]
        if new_key not in known and of_key["digest"].isin(index_of).all():
            indices = tuple(index_of[content] for content in of_key["digest"])
            stretches.append(Stretch(new_key, indices, group_of(samples[indices[0]]), bool(of_key["replica"].iloc[0])))
    return stretches


def _wide_stretches(
    rows: pd.DataFrame, samples: Sequence[AnySample], params: AnyParams, campaign: str
) -> list[Stretch]:
    costs = reduce_rows(rows, samples, params.visit_statistic)
    share = costs["spread_ms"] / (costs["forward_ms"] + costs["backward_ms"])
    by_sample = costs.assign(share=share).groupby("sample_id", sort=False)[["share", "repeats"]].max()
    by_sample["index"] = np.arange(len(samples))
    still = by_sample["repeats"] < [2 * len(rounds_of(sample, params)) for sample in samples]
    wide = by_sample[still & (by_sample["share"] > params.wide_spread_share)]
    wide = wide.sort_values(["repeats", "share"], ascending=[True, False])
    known = rows.loc[rows["key"].str.contains(f"/{_WIDE}-"), "key"].nunique()
    stretches: list[Stretch] = []
    for group in sorted({group_of(samples[index]) for index in wide["index"]}):
        chosen = [index for index in wide["index"] if group_of(samples[index]) == group]
        for start in range(0, len(chosen), params.chunk_samples):
            indices = tuple(chosen[start : start + params.chunk_samples])
            key = f"{campaign}/{_WIDE}-{known + len(stretches):04d}/w{group}-{digest(*(samples[i] for i in indices))}"
            stretches.append(Stretch(key, indices, group, replica=False))
    return stretches

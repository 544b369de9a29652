"""Chooses samples that need more visits than planned: samples of disturbed chunks, and samples with a wide spread."""

from collections.abc import Sequence

import numpy as np
import pandas as pd

from neuroshard_pipeline.measurement.chunks import AnyParams, AnySample, Chunk, digest, group_of, rounds_of
from neuroshard_pipeline.measurement.costs import reduce_rows

_REGULAR, _AGAIN, _WIDE = "visit", "again", "wide"


def extra_chunks(rows: pd.DataFrame, samples: Sequence[AnySample], params: AnyParams, campaign: str) -> list[Chunk]:
    """The next round of extra chunks; empty if no sample needs another visit.

    First, each regular chunk during which the reference probe ran `disturbed_slowdown` times slower than its best is
    measured once more, the slowest chunk first. Then each sample whose spread exceeds `wide_spread_share` of its cost
    gets one more visit per round, until it has twice its regular visits; the samples with the fewest visits come first,
    and among those the widest. The choice depends on `rows` alone, so a resumed campaign continues where it stopped.

    Args:
        rows: everything measured so far (`costs.load_rows`).
        samples: samples of the campaign.
        params: parameters of the campaign.
        campaign: hash that the keys start with.
    """
    return _disturbed_chunks(rows, samples, params, campaign) or _wide_chunks(rows, samples, params, campaign)


def extra_seconds(rows: pd.DataFrame) -> float:
    """Time that the extra visits among `rows` took, summed over workers, in seconds."""
    return float(rows.loc[(_kind(rows) != _REGULAR) & (rows["rank"] == 0), "seconds"].sum())


def _kind(rows: pd.DataFrame) -> pd.Series:
    """Why each row was measured: the first word in the second part of its key."""
    return rows["key"].str.split("/").str[1].str.split("-").str[0]


def _disturbed_chunks(
    rows: pd.DataFrame, samples: Sequence[AnySample], params: AnyParams, campaign: str
) -> list[Chunk]:
    known = set(rows["key"])
    regular = rows[_kind(rows) == _REGULAR]
    index_of = {digest(sample): index for index, sample in enumerate(samples)}
    group = regular["key"].str.rsplit("/").str[-1].str.split("-").str[0]
    best_ms = regular["probe_ms"].groupby(group).transform("min")
    slowdown = (regular["probe_ms"] / best_ms).groupby(regular["key"]).median()
    chunks = []
    for key in slowdown[slowdown > params.disturbed_slowdown].sort_values(ascending=False).index:
        new_key = key.replace(f"{campaign}/{_REGULAR}-", f"{campaign}/{_AGAIN}-")
        of_key = regular[(regular["key"] == key) & (regular["rank"] == 0)]
        if new_key not in known and of_key["digest"].isin(index_of).all():
            indices = tuple(index_of[content] for content in of_key["digest"])
            chunks.append(Chunk(new_key, indices, group_of(samples[indices[0]]), bool(of_key["replica"].iloc[0])))
    return chunks


def _wide_chunks(rows: pd.DataFrame, samples: Sequence[AnySample], params: AnyParams, campaign: str) -> list[Chunk]:
    costs = reduce_rows(rows, samples, params.visit_statistic)
    share = costs["spread_ms"] / (costs["forward_ms"] + costs["backward_ms"])
    by_sample = costs.assign(share=share).groupby("sample_id", sort=False)[["share", "repeats"]].max()
    by_sample["index"] = np.arange(len(samples))
    may_have_more = by_sample["repeats"] < [2 * len(rounds_of(sample, params)) for sample in samples]
    wide = by_sample[may_have_more & (by_sample["share"] > params.wide_spread_share)]
    wide = wide.sort_values(["repeats", "share"], ascending=[True, False])
    number = rows.loc[rows["key"].str.contains(f"/{_WIDE}-"), "key"].nunique()
    chunks: list[Chunk] = []
    for group in sorted({group_of(samples[index]) for index in wide["index"]}):
        chosen = [index for index in wide["index"] if group_of(samples[index]) == group]
        for start in range(0, len(chosen), params.chunk_samples):
            indices = tuple(chosen[start : start + params.chunk_samples])
            key = f"{campaign}/{_WIDE}-{number + len(chunks):04d}/w{group}-{digest(*(samples[i] for i in indices))}"
            chunks.append(Chunk(key, indices, group, replica=False))
    return chunks

"""Campaigns that compute the costs of samples instead of measuring them."""

from collections.abc import Callable, Iterator, Sequence

import pandas as pd


class ComputedCampaigns:
    """Has the methods of `evaluation.campaigns.Campaigns`; a record holds the costs of all samples of a campaign.

    Attributes:
        measured: ids of the samples of every campaign that has run.
    """

    def __init__(self, compute: Callable[[Sequence], pd.DataFrame], comm: Callable[[Sequence], pd.DataFrame]) -> None:
        self._compute, self._comm = compute, comm
        self.measured: list[list[str]] = []

    def run_compute(self, samples, done) -> Iterator[tuple[str, pd.DataFrame]]:
        return self._run(self._compute, samples, done)

    def run_comm(self, samples, done) -> Iterator[tuple[str, pd.DataFrame]]:
        return self._run(self._comm, samples, done)

    def compute_costs(self, records, samples) -> pd.DataFrame:
        (costs,) = records.values()
        return costs[costs["sample_id"].isin([sample.sample_id for sample in samples])]

    comm_costs = compute_costs

    def measure_compute(self, samples) -> pd.DataFrame:
        return self.compute_costs(dict(self.run_compute(samples, {})), samples)

    def measure_comm(self, samples) -> pd.DataFrame:
        return self.comm_costs(dict(self.run_comm(samples, {})), samples)

    def _run(self, costs_of, samples, done) -> Iterator[tuple[str, pd.DataFrame]]:
        if not done:
            self.measured.append([sample.sample_id for sample in samples])
            yield "record", costs_of(samples)

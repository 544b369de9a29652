"""What a campaign does about samples that fail: it logs them, and it stops if the first samples all fail."""

import logging
from collections.abc import Collection, Hashable
from typing import Any, final

import pandas as pd

from neuroshard_pipeline.errors import MeasurementError

_LOGGER = logging.getLogger(__name__)

#: A run without a success stops at this many failures. Permanent ones and samples with a stored failure do not count.
STOP_AFTER = 3
#: Failures that are logged one by one; further ones are only counted.
_MOST_LOGGED = 20


@final
class FailureWatch:
    """Logs the failures in the new records of a run, and stops a run in which everything fails.

    Args:
        known: digests of samples with a stored failure. They may fail again without stopping the campaign.
    """

    def __init__(self, known: Collection[str]) -> None:
        self._known = frozenset(known)
        self._failed: dict[str, dict[Hashable, Any]] = {}  # row of the record by digest, of the failures of this run
        self.any_success = False

    def look_at(self, record: pd.DataFrame) -> None:
        """Log the samples of a record that failed for the first time in this run, at most `_MOST_LOGGED` per run.

        Raises:
            MeasurementError: the first samples of the run all failed for a reason that may pass.
        """
        failed = record[record["error"].notna()].drop_duplicates("digest")
        self.any_success |= len(failed) < record["digest"].nunique()
        new = failed[~failed["digest"].isin(self._failed)]
        for row in new.to_dict("records"):
            self._failed[row["digest"]] = row
            self._log(row["sample_id"], row["error"], row["permanent"])
        unexpected = [row for digest, row in self._failed.items() if not row["permanent"] and digest not in self._known]
        if not self.any_success and len(unexpected) >= STOP_AFTER:
            raise MeasurementError(
                f"the campaign stops and stores nothing of this run, because none of its first {len(unexpected)} "
                f"samples could be measured; the error of {unexpected[0]['sample_id']} is: {unexpected[0]['error']}. "
                "Check the device, its free memory and timeout_s, then start the run again"
            )

    def log_end(self) -> None:
        """Log how many samples failed in this run."""
        if self._failed:
            final_ones = sum(row["permanent"] for row in self._failed.values())
            _LOGGER.warning(
                "%d of this run's samples failed; the next run measures %d of them again, and %d stay without a cost",
                len(self._failed), len(self._failed) - final_ones, final_ones,
            )  # fmt: skip

    def _log(self, sample_id: str, error: str, permanent: bool) -> None:
        count = len(self._failed)
        if count <= _MOST_LOGGED:
            next_step = "it stays a row with this error" if permanent else "the next run measures it again"
            _LOGGER.warning("%s failed: %s; %s", sample_id, error, next_step)
        if count == _MOST_LOGGED:
            _LOGGER.warning("further failures are not logged; the column `error` says why a sample has no costs")

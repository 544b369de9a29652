"""Parameters of the searches."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, model_validator

from neuroshard_pipeline.search.simulator import Caution

Count = Annotated[int, Field(ge=1)]


class SearchParams(BaseModel):
    """Beam search over column splits around a greedy grid search [Zha2023] §3.3.

    Attributes:
        num_candidates: N; the N largest and the N most expensive shards are tried for halving.
        beam_width: K; states kept per step.
        max_steps: L; column splits at most, 0 for table-wise sharding.
        num_caps: M; caps on a rank's dimension sum that the grid search tries.
        min_cap_ratio: smallest cap as a multiple of the mean dimension sum.
        max_cap_ratio: largest cap as a multiple of the mean dimension sum.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    num_candidates: Count
    beam_width: Count
    max_steps: Annotated[int, Field(ge=0)]
    num_caps: Count
    min_cap_ratio: Annotated[float, Field(ge=1.0)]
    max_cap_ratio: Annotated[float, Field(ge=1.0)]

    @model_validator(mode="after")
    def _caps_ascend(self) -> SearchParams:
        if self.max_cap_ratio < self.min_cap_ratio:
            raise ValueError(f"max_cap_ratio {self.max_cap_ratio} lies below min_cap_ratio {self.min_cap_ratio}")
        return self


class PlusParams(BaseModel):
    """Local search that `neuroshard_plus` appends to the beam search.

    Attributes:
        max_rounds: rounds of local search at most; a budget in rounds makes results repeatable on any machine.
        time_budget_seconds: wall-clock seconds at most, 0 for no limit; whichever budget ends first ends the search.
        moves_per_round: moves whose exact cost is predicted per round.
        perturbation_moves: random moves that leave a local optimum.
        caution: 0 minimises the predicted embedding cost; up to 1, plans are judged ever more by a cost that takes
            the start skew of the forward collective for a mere wait (`simulator.cautious_cost_ms`).
        expected_error: relative error of predicted rank costs that plans are judged with
            (`simulator.expected_maximum`); 0 judges by the largest predicted cost alone.
        interval_share: how far from a prediction (0) to the upper end of its 90 % interval (1) costs are taken.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    max_rounds: Annotated[int, Field(ge=0)]
    time_budget_seconds: Annotated[float, Field(ge=0.0)]
    moves_per_round: Count
    perturbation_moves: Count
    caution: Annotated[float, Field(ge=0.0, le=1.0)]
    expected_error: Annotated[float, Field(ge=0.0, le=1.0)]
    interval_share: Annotated[float, Field(ge=0.0, le=1.0)]

    @property
    def distrust(self) -> Caution:
        """What plans are judged with."""
        return Caution(self.caution, self.interval_share, self.expected_error)


#: Settings of [Zha2023] §4: N = 10, K = 3, L = 10, and M = 11 caps from 1.0 to 1.5 times the mean.
PAPER_SEARCH = SearchParams(
    num_candidates=10, beam_width=3, max_steps=10, num_caps=11, min_cap_ratio=1.0, max_cap_ratio=1.5
)

#: Local search of `neuroshard_plus`: a budget in rounds, so that a plan depends on the seed and not on the machine.
REFINEMENT = PlusParams(
    max_rounds=200,
    time_budget_seconds=0.0,
    moves_per_round=64,
    perturbation_moves=3,
    caution=0.5,
    expected_error=0.0,
    interval_share=0.0,
)

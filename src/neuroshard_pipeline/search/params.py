"""Parameters of the searches, and their defaults: the values of conf/base/parameters_search.yml.

The package ships that file (a symbolic link in the folder `neuroshard_pipeline`), so that Python and `kedro run` search
with the same values.
"""

from functools import cache
from importlib.resources import files
from typing import Annotated, Any

import yaml
from pydantic import Field

from neuroshard_pipeline.parameters import Parameters
from neuroshard_pipeline.search.memory import MemoryModel

Count = Annotated[int, Field(ge=1)]


class SearchParams(Parameters):
    """Beam search over column splits around a greedy grid search [Zha2023] §3.3, with the paper's letters N, K, L, M.

    Attributes:
        num_candidates: N; each step tries to halve the N largest and the N most expensive shards.
        beam_width: K; states kept per step.
        max_steps: L; largest number of steps, each of which adds one column split. Earlier splits do not count: those
            without which the tables do not fit, and those of a search that starts from split tables.
        num_caps: M; number of caps on a rank's dimension sum that the grid search tries.
        min_cap_ratio: smallest cap as a multiple of the mean dimension sum.
        max_cap_ratio: largest cap as a multiple of the mean dimension sum.
    """

    num_candidates: Count
    beam_width: Count
    max_steps: Annotated[int, Field(ge=0)]
    num_caps: Count
    min_cap_ratio: Annotated[float, Field(ge=1.0)]
    max_cap_ratio: Annotated[float, Field(ge=1.0)]


class LocalSearchParams(Parameters):
    """Local search that `neuroshard_plus` appends to a beam search.

    With a step cost model, there may be several beam searches; each of their local searches has these budgets, and
    half the rounds in tiny tasks, where another search follows (`sharders.whole_step`).

    Attributes:
        max_rounds: largest number of rounds, whatever the speed of the machine; fewer if half of them bring nothing.
        time_budget_seconds: wall-clock limit, 0 for none; the search ends when either budget is used up.
        moves_per_round: number of most promising moves of a round, the only ones whose embedding cost is predicted.
        perturbation_moves: number of random moves that are applied to leave a local optimum.
    """

    max_rounds: Annotated[int, Field(ge=0)]
    time_budget_seconds: Annotated[float, Field(ge=0.0)]
    moves_per_round: Count
    perturbation_moves: Count


@cache
def default_values() -> dict[str, dict[str, Any]]:
    """The section `search` of the shipped parameters_search.yml."""
    text = files("neuroshard_pipeline").joinpath("parameters_search.yml").read_text(encoding="utf-8")
    section: dict[str, dict[str, Any]] = yaml.safe_load(text)["search"]
    return section


def default_memory() -> MemoryModel:
    """Default memory model: weights and optimizer state."""
    return MemoryModel(**default_values()["memory"])

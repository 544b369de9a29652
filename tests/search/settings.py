"""Settings for tests; the product's defaults are in conf/base/parameters_search.yml."""

from neuroshard_pipeline.search.memory import MemoryModel
from neuroshard_pipeline.search.params import LocalSearchParams, SearchParams, default_memory
from neuroshard_pipeline.sharders.base import SharderSettings

#: What [Zha2023] §2 counts against the memory of a rank.
WEIGHTS_AND_OPTIMIZER = MemoryModel(
    optimizer_state=True, input_buffers=False, output_buffers=False, reserve_fraction=0.0
)

#: Settings of [Zha2023] §4: N = 10, K = 3, L = 10, and M = 11 caps from 1.0 to 1.5 times the mean columns of a rank.
PAPER_SEARCH = SearchParams(
    num_candidates=10, beam_width=3, max_steps=10, num_caps=11, min_cap_ratio=1.0, max_cap_ratio=1.5
)

#: Those of `--env test`: a search takes a third of the time, and on small tasks it finds nearly the same plans.
QUICK_SEARCH = PAPER_SEARCH.model_copy(update={"num_candidates": 3, "beam_width": 2, "max_steps": 2, "num_caps": 4})

LOCAL_SEARCH = LocalSearchParams(max_rounds=100, time_budget_seconds=0.0, moves_per_round=64, perturbation_moves=3)

#: For tests that compare plans, or look at what a plan is and not at how cheap it is.
QUICK = SharderSettings(QUICK_SEARCH, LOCAL_SEARCH.model_copy(update={"max_rounds": 3}), default_memory())

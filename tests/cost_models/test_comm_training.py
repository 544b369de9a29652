import json

import numpy as np
import pandas as pd
import pytest

from neuroshard_pipeline.cost_models.comm_training import comm_data, train_comm_model
from neuroshard_pipeline.errors import CostModelError

from .machine import make_comm_sample, true_comm_ms


@pytest.fixture(scope="module")
def frames():
    """Frames like those of the augment and measure stages, costs in random order; one rank of comm-000002 failed."""
    rng = np.random.default_rng(4)
    made = [make_comm_sample(rng, index, int(rng.choice([2, 4]))) for index in range(60)]
    samples = pd.DataFrame(
        [
            (s.sample_id, s.world_size, s.batch_size, rank, s.dim_sums[rank], s.start_skew_ms[rank])
            for s in made
            for rank in range(s.world_size)
        ],
        columns=["sample_id", "world_size", "batch_size", "rank", "dim_sum", "start_skew_ms"],
    )
    costs = pd.DataFrame(
        [
            (s.sample_id, rank, *true_comm_ms(s)[rank], 0.01, "broken" if (index, rank) == (2, 1) else None)
            for index, s in enumerate(made)
            for rank in range(s.world_size)
        ],
        columns=["sample_id", "rank", "forward_ms", "backward_ms", "spread_ms", "error"],
    )
    return samples, costs.sample(frac=1, random_state=0)


def test_metrics_and_held_out_predictions(frames, comm_params):
    model, metrics, held_out = train_comm_model(*frames, comm_params, {"noise_floor": None})
    assert set(metrics) == {"comm_forward", "comm_backward"}
    for figures in metrics.values():
        assert set(figures) >= {"mape", "median_ape", "r2", "kendall_tau", "noise_floor"}
        assert figures["n_left_out"] == 1
        assert figures["world_sizes"] == [2, 4]
    json.dumps(metrics)
    assert set(held_out["model"]) == set(metrics)
    costs = frames[1].set_index(["sample_id", "rank"])
    for row in held_out[held_out["model"] == "comm_forward"].itertuples():
        assert row.measured_ms == costs.loc[(row.sample_id, row.rank), "forward_ms"]
    assert model.world_sizes == (2, 4)


def test_a_sample_with_a_failed_rank_is_left_out(frames):
    data = comm_data(*frames)
    assert "comm-000002" not in data.sample_ids
    assert all(costs.shape == (s.world_size, 2) for s, costs in zip(data.samples, data.costs, strict=True))


def test_costs_of_other_samples_are_refused(frames):
    samples, costs = frames
    with pytest.raises(CostModelError, match="comm-000000"):
        comm_data(samples[samples["sample_id"] != "comm-000000"], costs)

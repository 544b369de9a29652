"""Changes of plan are carried out: weights and optimizer states arrive bit by bit, for every pair of sharding types."""

import pytest
from torchrec_bridge.needs_torchrec import QUIET

# isort: split
from torchrec_bridge.drawn_plans import TYPES
from torchrec_bridge.moving_ranks import HOSTS, killed_while_saving, loaded_and_moved, moved, refusals, saved
from torchrec_bridge.ranks import run_ranks

pytestmark = [pytest.mark.slow, *QUIET]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Checkpoints of 2 ranks for all types."""
    folder = tmp_path_factory.mktemp("checkpoints")
    run_ranks(2, folder, saved, str(folder))
    return folder


@pytest.mark.parametrize(
    ("optimizer", "types"), [("sgd", TYPES), ("adagrad", ["grid_shard", "data_parallel", "row_wise"])]
)
def test_models_move_between_types_on_one_host(tmp_path, optimizer, types):
    """A state of Adagrad has the same rectangles as its weights, so that three types suffice."""
    run_ranks(2, tmp_path, moved, optimizer, types, str(tmp_path))


def test_checkpoints_of_every_type_load_on_more_and_on_fewer_ranks_and_models_move_between_hosts(folder):
    """For TorchRec, 4 ranks are on two hosts. They have row-wise Adagrad, whose states have rectangles of their own."""
    run_ranks(4, folder, loaded_and_moved, str(folder), 2, local_world_size=HOSTS[4])
    run_ranks(2, folder, loaded_and_moved, str(folder), 4)


def test_a_checkpoint_whose_job_was_killed_is_refused_and_the_old_one_loads(folder):
    with pytest.raises(AssertionError, match=r"ended without an answer|Connection"):
        run_ranks(2, folder, killed_while_saving, str(folder))
    assert any((folder / "killed").iterdir())
    run_ranks(2, folder, refusals, str(folder))

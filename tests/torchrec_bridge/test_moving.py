"""Changes of plan are carried out: weights and optimizer states arrive bit by bit, for every pair of sharding types."""

import pytest
from torchrec_bridge.needs_torchrec import QUIET

# isort: split
from torchrec_bridge.moving_ranks import HOSTS, killed_while_saving, loaded, moved_and_saved, refusals
from torchrec_bridge.ranks import run_ranks

pytestmark = [pytest.mark.slow, *QUIET]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Checkpoints of 2 ranks for all types and optimizers."""
    folder = tmp_path_factory.mktemp("checkpoints")
    for optimizer in ("sgd", "adagrad", "rowwise"):
        run_ranks(2, folder, moved_and_saved, optimizer, str(folder))
    return folder


@pytest.mark.parametrize("world_size", [4, 8])
def test_checkpoints_of_every_type_load_on_more_ranks(folder, world_size):
    """For TorchRec, 4 or 8 ranks are on two hosts. 4 ranks also move and save, as those of `folder` do."""
    run_ranks(world_size, folder, loaded, str(folder), local_world_size=HOSTS[world_size])


def test_a_checkpoint_whose_job_was_killed_is_refused_and_the_old_one_loads(folder):
    with pytest.raises(AssertionError, match=r"ended without an answer|Connection"):
        run_ranks(2, folder, killed_while_saving, str(folder))
    assert any((folder / "killed").iterdir())
    run_ranks(2, folder, refusals, str(folder))

import json

import numpy as np
import pytest

from neuroshard_pipeline.cost_models import checkpoint
from neuroshard_pipeline.errors import CostModelError

WEIGHTS = {"a": np.arange(6.0).reshape(2, 3), "b": np.float32([1.5])}


@pytest.fixture
def folder(tmp_path):
    checkpoint.save_checkpoint(tmp_path / "m", "Kind", {"answer": 42}, WEIGHTS)
    return tmp_path / "m"


def test_round_trip(folder):
    stored = checkpoint.load_checkpoint(folder, "Kind")
    weights = stored.arrays
    assert stored.field("answer") == 42
    assert set(weights) == {"a", "b"}
    for name, value in WEIGHTS.items():
        np.testing.assert_array_equal(weights[name], value)
        assert weights[name].dtype == value.dtype


def edit(**changes):
    def change(folder):
        path = folder / "model.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))

    return change


BREAKAGES = {
    "no weights": lambda folder: (folder / "weights.safetensors").unlink(),
    "no description": lambda folder: (folder / "model.json").unlink(),
    "truncated weights": lambda folder: (folder / "weights.safetensors").write_bytes(
        (folder / "weights.safetensors").read_bytes()[:-3]
    ),
    "empty weights": lambda folder: (folder / "weights.safetensors").write_bytes(b""),
    "truncated description": lambda folder: (folder / "model.json").write_text('{"kind": "Ki'),
    "binary description": lambda folder: (folder / "model.json").write_bytes(b"\xff\xfe\x00"),
    "description is a list": lambda folder: (folder / "model.json").write_text("[]"),
    "other kind": edit(kind="Other"),
    "future format": edit(format_version=99),
    "pickle instead": lambda folder: (folder / "weights.safetensors").write_bytes(b"\x80\x04K\x01."),
}


@pytest.mark.parametrize("breakage", BREAKAGES)
def test_the_error_of_a_broken_checkpoint_names_folder_and_remedy(folder, breakage):
    BREAKAGES[breakage](folder)
    with pytest.raises(CostModelError) as caught:
        checkpoint.load_checkpoint(folder, "Kind")
    assert str(folder) in str(caught.value)
    assert "kedro run --pipeline pretrain" in str(caught.value)


def test_weights_with_a_matching_checksum_must_still_be_safetensors(folder):
    import hashlib

    blob = b"\x80\x04K\x01."
    (folder / "weights.safetensors").write_bytes(blob)
    edit(weights_sha256=hashlib.sha256(blob).hexdigest())(folder)
    with pytest.raises(CostModelError, match="not a safetensors file"):
        checkpoint.load_checkpoint(folder, "Kind")


def test_missing_arrays_are_named(folder):
    with pytest.raises(CostModelError, match="weights c, d are missing"):
        checkpoint.load_checkpoint(folder, "Kind").take({"a", "d", "c"})

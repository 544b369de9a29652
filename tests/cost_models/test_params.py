import pytest
from pydantic import ValidationError

from neuroshard_pipeline.cost_models import CommTrainParams, ComputeTrainParams

from .conftest import FIT, HEAD

COMPUTE = {**FIT, **HEAD}


def test_good_parameters_are_taken_and_frozen():
    params = ComputeTrainParams(**COMPUTE)
    with pytest.raises(ValidationError):
        params.epochs = 3


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("members", 0),
        ("hidden", 1),
        ("epochs", 0),
        ("batch_samples", 0),
        ("learning_rate", 0.0),
        ("weight_decay", -1.0),
        ("small_error", 0.0),
        ("validation_share", 0.0),
        ("test_share", 0.5),
        ("seed", -1),
        ("gates", 0),
        ("pressures", 0),
        ("surprise", 1),
    ],
)
def test_impossible_parameters_are_refused(field, value):
    with pytest.raises(ValidationError, match=field):
        ComputeTrainParams(**{**COMPUTE, field: value})


@pytest.mark.parametrize("field", sorted(COMPUTE))
def test_no_parameter_has_a_default_in_its_type(field):
    with pytest.raises(ValidationError, match=field):
        ComputeTrainParams(**{name: value for name, value in COMPUTE.items() if name != field})


def test_comm_parameters_have_no_gates():
    with pytest.raises(ValidationError, match="gates"):
        CommTrainParams(**COMPUTE)

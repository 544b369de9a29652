import pytest

from evaluation.refinement.made_up import first_training_set, train


@pytest.fixture(scope="session")
def first():
    return first_training_set()


@pytest.fixture(scope="session")
def trained(first):
    return train(first)

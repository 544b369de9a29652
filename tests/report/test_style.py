import pytest

from neuroshard_pipeline.report.style import faded, log_axis, sharder_colours

KNOWN = ["neuroshard", "neuroshard_plus", "random", "size_greedy", "dim_greedy", "lookup_greedy", "size_lookup_greedy"]


def test_known_sharders_and_one_other_have_different_colours():
    colours = sharder_colours([*KNOWN, "torchrec", "mine"])
    assert len(set(colours.values())) == len(KNOWN) + 2


def test_a_known_sharder_keeps_its_colour_in_any_company():
    assert sharder_colours(["random"])["random"] == sharder_colours(KNOWN)["random"]


def test_more_unknown_sharders_than_spare_colours_are_allowed():
    assert len(sharder_colours([f"s{index}" for index in range(30)])) == 30


def test_faded():
    assert faded("#D55E00", 0.5) == "rgba(213,94,0,0.5)"


@pytest.mark.parametrize(("low", "high", "labels"), [(0.1, 3, {"0.2", "1", "2"}), (10, 5e6, {"100", "10k", "1M"})])
def test_log_axis_labels_are_decimal(low, high, labels):
    axis = log_axis(low, high)
    assert labels <= set(axis["ticktext"])
    assert len(axis["ticktext"]) == len(axis["tickvals"])

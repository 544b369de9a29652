import pytest

from neuroshard_pipeline.report.formats import amount, decimals_for, fixed, percent, plural


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.01234, "0.0123"),
        (3.2149, "3.21"),
        (12.0, "12.0"),
        (123.4, "123"),
        (999.4, "999"),
        (999.7, "1,000"),
        (12345.6, "12,346"),
    ],
)
def test_amount_has_at_least_three_digits(value, text):
    assert amount(value) == text


@pytest.mark.parametrize(("values", "decimals"), [([], 5), ([None, 0.02], 5), ([0.5, 0.1], 4), ([1, 150], 1)])
def test_decimals_follow_the_largest_value(values, decimals):
    assert decimals_for(values) == decimals


@pytest.mark.parametrize(("share", "text"), [(0.031, "3.1 %"), (0.19, "19 %")])
def test_percent(share, text):
    assert percent(share) == text


@pytest.mark.parametrize(("value", "text"), [(None, "-"), (0.0, "0.000"), (0.0004, "<0.001"), (0.0006, "0.001")])
def test_fixed_never_rounds_something_to_nothing(value, text):
    assert fixed(value, 3) == text


@pytest.mark.parametrize(("count", "text"), [(0, "0 tasks"), (1, "1 task"), (1200, "1,200 tasks")])
def test_plural(count, text):
    assert plural(count, "task") == text

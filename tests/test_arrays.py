import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from neuroshard_pipeline.arrays import distinct


@given(st.lists(st.integers(-(2**63), 2**63 - 1) | st.integers(-2, 2)))
def test_distinct_numbers_are_in_ascending_order(numbers):
    found = distinct(np.array(numbers, dtype=np.int64))
    assert found.dtype == np.int64
    assert found.tolist() == sorted(set(numbers))

"""Compares sharders on suites of tasks, by measured or predicted cost: `kedro run --pipeline benchmark`."""

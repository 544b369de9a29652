"""Stage train: fits the cost models to measured costs."""

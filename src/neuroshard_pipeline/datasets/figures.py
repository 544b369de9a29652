"""A dataset of figures, apart from the others, because importing `kedro_datasets.plotly` takes half a second."""

from kedro_datasets.plotly import JSONDataset

from neuroshard_pipeline.datasets.atomic import AtomicSave


class AtomicPlotlyDataset(AtomicSave, JSONDataset):
    """`plotly.JSONDataset` with an atomic save."""

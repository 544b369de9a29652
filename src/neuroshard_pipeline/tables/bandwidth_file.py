"""Reads the measured bandwidths between the ranks of a cluster from a CSV file."""

import math
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from neuroshard_pipeline.errors import TableFileError
from neuroshard_pipeline.tables.records import read_text


def read_bandwidths(path: str | Path, world_size: int) -> NDArray[np.float64]:
    """Bandwidths in GB/s from a CSV file without a header; row p, column q is the bandwidth from rank p to rank q.

    Args:
        path: the file; the values on its diagonal are ignored and may be empty.
        world_size: number of ranks, W.

    Returns:
        (W, W), infinite on the diagonal.

    Raises:
        TableFileError: the file is unreadable or does not hold W x W bandwidths; the message names file and remedy.
    """
    path = Path(str(path))  # a value that is not a path, such as None, gets into the error
    lines = [(at, line.split(",")) for at, line in enumerate(read_text(path).splitlines(), 1) if line.strip(" ,")]
    wanted = f"world_size is {world_size}; write one line per sending rank and one value per receiving rank"
    if len(lines) != world_size:
        raise TableFileError(f"{path}: {len(lines)} lines of bandwidths, but {wanted}")
    bandwidths = np.full((world_size, world_size), np.inf)
    for sender, (number, cells) in enumerate(lines):
        if len(cells) != world_size:
            raise TableFileError(f"{path}: line {number} has {len(cells)} values, but {wanted}")
        for receiver, cell in enumerate(cells):
            if receiver != sender:
                bandwidths[sender, receiver] = _bandwidth(cell, f"{path}: line {number}, column {receiver + 1}")
    return bandwidths


def _bandwidth(cell: str, where: str) -> float:
    try:
        value = float(cell)
    except ValueError:
        value = math.nan
    if not (value > 0 and math.isfinite(value)):
        raise TableFileError(f"{where}: {cell.strip()!r} is not a bandwidth; give GB/s above 0, such as 48.5")
    return value

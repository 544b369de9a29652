"""Generates click logs in Criteo's format."""

from __future__ import annotations

import gzip
from collections.abc import Sequence
from pathlib import Path

import numpy as np

Line = tuple[int, list[str], list[str]]


def criteo_line(label: object, integers: Sequence[str], categories: Sequence[str]) -> str:
    return "\t".join([str(label), *integers, *categories])


def write_criteo(path: Path, num_lines: int, seed: int) -> list[Line]:
    """Write random lines, a tenth of whose fields are missing, and return what they hold."""
    rng = np.random.default_rng(seed)
    lines: list[Line] = []
    for _ in range(num_lines):
        integers = [str(value) for value in rng.geometric(0.05, 13) - 3]
        categories = [f"{value:08x}" for value in (rng.pareto(0.7, 26) * 1000).astype(np.int64) % 2**32]
        missing = rng.random(39) < 0.1
        fields = ["" if gone else field for field, gone in zip(integers + categories, missing, strict=True)]
        lines.append((int(rng.random() < 0.3), fields[:13], fields[13:]))
    text = "".join(criteo_line(*line) + "\n" for line in lines)
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return lines

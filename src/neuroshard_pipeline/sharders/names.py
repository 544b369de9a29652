"""Names of sharders as types of parameters: pydantic validates them before any node runs."""

from typing import Annotated

from pydantic import AfterValidator

from neuroshard_pipeline.sharders.registry import SHARDERS


def _known(name: str) -> str:
    if name not in SHARDERS:
        raise ValueError(f"use one of {', '.join(SHARDERS)}")
    return name


def _distinct(names: tuple[str, ...]) -> tuple[str, ...]:
    if len(set(names)) < len(names):
        raise ValueError("name every sharder once")
    return names


#: The name of a sharder.
SharderName = Annotated[str, AfterValidator(_known)]

#: Names of different sharders.
SharderNames = Annotated[tuple[SharderName, ...], AfterValidator(_distinct)]

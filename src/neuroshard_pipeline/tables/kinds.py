"""What a table belongs to: the embedding module of the model, and the sequence table that it is a tier of."""

from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, NamedTuple, Self, get_args

from neuroshard_pipeline.errors import TaskError

#: Kinds of tiers, from the most popular rows of a sequence table to the least popular. Hot rows are replicated on every
#: rank. Every host has all host rows, sharded over its ranks. Of cold rows, there is only one copy.
TierKind = Literal["hot", "host", "cold"]
TIER_KINDS: tuple[TierKind, ...] = get_args(TierKind)


class EmbeddingModule(NamedTuple):
    """An embedding module of TorchRec, by the tables' field `module` and the kind of its collection.

    Sequence tables (in an `EmbeddingCollection`), and tables whose ids have weights, are in separate modules.
    """

    module: str
    is_sequence: bool
    is_weighted: bool

    @classmethod
    @lru_cache
    def of(cls, module: str, is_sequence: bool, is_weighted: bool) -> Self:
        """The module of a table that names `module`; the default path stands for no name."""
        own = cls(module, is_sequence, is_weighted)
        return own._replace(module="") if module == own.default_path else own

    @property
    def collection(self) -> str:
        """Name of the collection of this kind, such as `weighted_embedding_bag_collection`."""
        return f"{'weighted_' * self.is_weighted}embedding_{'' if self.is_sequence else 'bag_'}collection"

    @property
    def default_path(self) -> str:
        """Path of the module of tables that name none."""
        return f"sparse_arch.{self.collection}"


@dataclass(frozen=True, slots=True)
class Tier:
    """Says which rows of a sequence table, the parent, a tier holds. The tier is another `Table` (`tables.tiers`).

    Attributes:
        kind: one of `TIER_KINDS`.
        parent: name of the sequence table.
        row_offset: the tier's first row, in the order of popularity of the parent's rows, hottest first.

    Raises:
        TaskError: a value is impossible.
    """

    kind: TierKind
    parent: str
    row_offset: int

    def __post_init__(self) -> None:
        if self.kind not in TIER_KINDS:
            raise TaskError(f"tier of table {self.parent!r}: kind {self.kind!r} is not one of {', '.join(TIER_KINDS)}")
        if self.row_offset < 0:
            raise TaskError(f"tier of table {self.parent!r}: row_offset {self.row_offset} must be at least 0")

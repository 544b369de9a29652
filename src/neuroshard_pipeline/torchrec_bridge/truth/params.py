"""Parameters of timed steps (`StepParams`) and of the judge that compares plans by them (`JudgeParams`)."""

from collections.abc import Sequence
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, PositiveInt

from neuroshard_pipeline.evaluation.peak_memory import peak_memory
from neuroshard_pipeline.host import available_memory_bytes
from neuroshard_pipeline.lab.network_presets import network_preset
from neuroshard_pipeline.parameters import Parameters
from neuroshard_pipeline.search.plan import Plan
from neuroshard_pipeline.sharders.registry import SharderName
from neuroshard_pipeline.torchrec_bridge.ranks import RANK_BYTES, RankParams

#: Memory that a plan takes for each byte of its tables: ranks keep what they have freed, with gaps.
BYTES_PER_TABLE_BYTE = 1.25

#: What the measured costs of a judge are, as tables and reports say it.
JUDGES = {
    "torchrec": "Measured steps are those of TorchRec's own module, timed on {ranks} ranks of this machine.",
    "virtual": "Measured steps are those of TorchRec's own code and this processor's kernels on {ranks} virtual ranks; "
    "the network between their hosts is modelled as {network}.",
    "lab": "What stands in the column of measured steps is modelled by the lab's formulas: nothing was measured.",
    "none": "No plan was measured.",
}


class VariantParams(Parameters):
    """Variants of a sharder's plans, which show on real ranks what other sharding types cost.

    Attributes:
        of: a sharder whose plans are also measured with replicas and row shards; null measures no variants.
    """

    of: SharderName | None


#: A key of `lab.networks`, or `ethernet-<Gbit/s>`, one card per host.
NetworkName = Annotated[str, AfterValidator(lambda name: network_preset(name) and name)]


class TurnParams(RankParams):
    """How steps under several plans, which take turns, are timed.

    Attributes:
        learning_rate: learning rate of everything that is trained.
        rounds: number of rounds; in each round every plan has one turn, in a new random order.
        warmup_steps: steps at the start of every turn that are not timed.
        steps_per_round: steps of every turn that are timed.
        most_plans_held: largest number of plans whose modules the ranks hold at the same time, if memory suffices.
            Plans of one task that are held at the same time alternate.
        seed: seed of the order of turns and of drawn batches.
    """

    learning_rate: float = Field(gt=0)
    rounds: PositiveInt
    warmup_steps: int = Field(ge=0)
    steps_per_round: PositiveInt
    most_plans_held: PositiveInt
    seed: int = Field(ge=0)

    def plans_held(self, plans: Sequence[Plan], modules: int) -> int:
        """Number of a task's plans, of so many modules each, that ranks hold; a CPU rank itself takes `RANK_BYTES`."""
        held = self.most_plans_held
        if self.compute_device == "cpu":
            room = available_memory_bytes() - plans[0].task.world_size * RANK_BYTES
            largest = modules * max(float(peak_memory(plan).tables.sum()) for plan in plans)
            held = min(held, max(1, int(room / (BYTES_PER_TABLE_BYTE * largest))))
        return -(-len(plans) // -(-len(plans) // held))  # few groups of about equal size


class StepParams(TurnParams):
    """How steps of TorchRec's embedding module are timed.

    Attributes:
        num_batches: number of distinct global batches of a task, which are used in a cycle.
    """

    num_batches: PositiveInt


class JudgeParams(StepParams):
    """How sharders' plans are measured and compared.

    Attributes:
        judge: `torchrec` times steps of TorchRec's own module; `lab` models them by formulas, for GPUs that nobody
            here has; `none` compares predicted costs.
        most_ranks: largest number of ranks whose steps the clock of this machine times; null stands for the number that
            it runs side by side: GPUs, or cores (`host.ranks_side_by_side`). Ranks that share a core would time the
            scheduler.
        network: name of the network between virtual ranks (`torchrec_bridge.virtual`), on which plans on more ranks are
            measured: a key of `lab.networks`, or `ethernet-<Gbit/s>`, one card per host. Null leaves them out.
        quantile: the quantile of a plan's timed steps that counts as its cost. Cost models are fitted to lower
            quartiles, 0.25; other programs on the same cores disturb a low quantile less than the median, 0.5.
        time_budget_s: seconds for all plans together; on a slow machine the plans then have fewer rounds, but at least
            `least_rounds`. Null sets no limit.
        least_rounds: see `time_budget_s`.
    """

    judge: Literal["torchrec", "lab", "none"]
    most_ranks: int | None = Field(ge=1)
    network: NetworkName | None
    quantile: float = Field(ge=0, le=1)
    time_budget_s: float | None = Field(gt=0)
    least_rounds: PositiveInt

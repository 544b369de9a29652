import dataclasses

import numpy as np
import pytest
import yaml
from conftest import ROOT

from neuroshard_pipeline.cost_models import CostModels, load_cost_models
from neuroshard_pipeline.cost_models.reductions import Curve, Group, ReductionCosts
from neuroshard_pipeline.cost_models.shipped import shipped_names
from neuroshard_pipeline.cost_models.step import StepCostModel
from neuroshard_pipeline.errors import CostModelError
from neuroshard_pipeline.lab.device import modelled_device
from neuroshard_pipeline.lab.network_presets import network_preset
from neuroshard_pipeline.sharders.registry import shard
from neuroshard_pipeline.tables.table import Shard, Table, whole
from neuroshard_pipeline.tables.task import ShardingTask

TABLE = Table("table", 1000, 16, 5.0)
#: Values of the environments that model a GPU; shipped models have the name of their environment.
LAB = {
    path.parent.name: values
    for path in (ROOT / "conf").glob("*/globals.yml")
    if "modelled_device" in (values := yaml.safe_load(path.read_text()))
}
OLD, NEW = "2026-01-01T00.00.00.000Z", "2026-02-01T00.00.00.000Z"


def step_model(worlds=(2, 4), hosts=1, **provenance):
    """A step cost model with made-up prices for these world sizes, and made-up costs of reductions on `hosts` hosts."""
    prices = {"input_dist": {"ids": 1.0}, "module": {"groups": 0.1}, "dense": {"gradients": 2.0}}
    curves = {Group(world, hosts): Curve(np.array([1e3, 1e6]), np.array([0.1, 1.0])) for world in worlds}
    names = ("reduce_scatter", "all_gather", "all_reduce")
    reductions = ReductionCosts(dict.fromkeys(names, curves), dict.fromkeys(names, 0.1), dict.fromkeys(names, 0.1))
    return StepCostModel(dict.fromkeys(worlds, prices), reductions, {}, provenance)


def save(model, path, name, version):
    model.save(path / name / version / name)


@pytest.fixture
def store(compute_model, comm_model, tmp_path):
    """Two versions, which differ in the world sizes that the communication model states."""
    for version, worlds in ((OLD, (2,)), (NEW, (2, 4, 8))):
        save(compute_model, tmp_path, "compute_cost_model", version)
        save(dataclasses.replace(comm_model, world_sizes=worlds), tmp_path, "comm_cost_model", version)
    return tmp_path


def test_shown_in_one_line(store):
    (line,) = repr(load_cost_models(store)).splitlines()
    assert line.startswith("CostModels(trained on ")
    assert len(line) < 200


@pytest.mark.parametrize(("version", "worlds"), [(None, (2, 4, 8)), (NEW, (2, 4, 8)), (OLD, (2,))])
def test_the_newest_version_is_loaded_unless_one_is_named(store, version, worlds):
    assert load_cost_models(store, version).comm.world_sizes == worlds


def test_an_unknown_version_is_refused_with_the_available_ones(store):
    with pytest.raises(CostModelError) as caught:
        load_cost_models(store, "yesterday")
    for part in (str(store), "'yesterday'", OLD, NEW, "kedro run --pipeline pretrain"):
        assert part in str(caught.value)


def test_an_empty_folder_says_what_to_run(tmp_path):
    with pytest.raises(CostModelError, match=r"compute_cost_model: holds no cost model.*kedro run --pipeline pretrain"):
        load_cost_models(tmp_path)


def test_a_half_written_version_is_not_the_newest(store):
    (store / "comm_cost_model" / "2027-01-01T00.00.00.000Z").mkdir()
    assert load_cost_models(store).comm.world_sizes == (2, 4, 8)


@pytest.mark.parametrize(("version", "worlds"), [(None, {2, 4}), (NEW, {2, 4}), (OLD, None)])
def test_the_step_cost_model_is_optional(store, version, worlds):
    assert load_cost_models(store).step is None
    save(step_model(), store, "step_cost_model", NEW)
    (store / "step_cost_model" / "2027-01-01T00.00.00.000Z").mkdir()  # half written
    step = load_cost_models(store, version).step
    assert (None if step is None else set(step.prices)) == worlds


def test_a_step_cost_model_of_another_machine_is_refused(compute_model, comm_model):
    def models(cpu_model):
        this = {"hardware": {"cpu_model": "this"}}
        step = step_model(hardware={"cpu_model": cpu_model})
        return CostModels(
            dataclasses.replace(compute_model, provenance=this), dataclasses.replace(comm_model, provenance=this), step
        )

    assert models("this").step.provenance == {"hardware": {"cpu_model": "this"}}
    with pytest.raises(CostModelError, match=r"step cost model do not belong together: cpu_model is 'this'.*'another'"):
        models("another")


def test_caveats_of_the_step_costs(compute_model, comm_model):
    """A caveat appears only if it applies to the task and the models."""
    tables = [Table("a", 1000, 16, 5.0), Table("b", 1000, 16, 5.0)]

    def caveats(step, tables=tables, **task):
        models = CostModels(compute_model, comm_model, step)
        task = ShardingTask(tables, **{"world_size": 4, "batch_size": 512, "memory_bytes": 2**30, **task})
        known = CostModels(compute_model, comm_model).caveats(dataclasses.replace(task, tables=(TABLE,)))
        return [caveat for caveat in models.caveats(task) if caveat not in known]

    assert caveats(step_model()) == []
    both = caveats(step_model(costs_are={"prices": "modelled", "reductions": "modelled"}))
    assert both == [
        "modelled: input dist and module costs and costs of reductions come from formulas of the lab, not from "
        "measurements"
    ]
    (one,) = caveats(step_model(costs_are={"prices": "measured", "reductions": "modelled"}))
    assert one.startswith("modelled: costs of reductions come")
    assert caveats(step_model(), world_size=16) == [
        "extrapolated: world_size 16: costs of steps were fitted for 2 to 4 ranks",
        "extrapolated: world_size 16: costs of reductions were fitted for 2 to 4 ranks",
    ]
    one_host = ["extrapolated: 2 hosts: costs of reductions were fitted for one host"]
    assert caveats(step_model(), local_world_size=2) == one_host
    assert caveats(step_model(hosts=2), local_world_size=2) == []
    (groups,) = caveats(step_model(), num_replica_groups=3)
    assert groups == "assumed: ranks of 3 replica groups share a host if they have the same shards"
    assert caveats(step_model(), index_dedup=True) == []
    rows = [dataclasses.replace(tables[0], pooling="none")]
    (copies,) = caveats(step_model(), rows, index_dedup=True)
    assert copies.startswith("not priced: the search for repeated or popular ids")
    other = dataclasses.replace(tables[1], pooling="mean", module="m")
    kinds = [caveat.split(" of")[0] for caveat in caveats(None, [tables[0], other])]
    assert kinds == [
        "approximated: weighted ids or mean pooling",
        "approximated: 2 modules: a search treats their tables as those",
    ]
    assert not any("weighted" in caveat for caveat in caveats(step_model(), [tables[0], other]))
    weighted = dataclasses.replace(tables[0], is_weighted=True)
    assert any(" 2 modules" in caveat for caveat in caveats(step_model(), [weighted, tables[1]]))
    assert "of table 'a' and 1 more:" in caveats(None, [weighted, dataclasses.replace(other, module="")])[0]


def test_costs_that_were_measured_on_a_busy_machine_have_a_caveat(compute_model, comm_model):
    task = ShardingTask((TABLE,), world_size=4, batch_size=512, memory_bytes=2**30)

    def caveats(**shares):
        hardware = {"other_programs": shares}
        provenance = {**compute_model.provenance, "hardware": hardware}
        return CostModels(dataclasses.replace(compute_model, provenance=provenance), comm_model).caveats(task)

    quiet = CostModels(compute_model, comm_model).caveats(task)
    assert caveats(compute=0.09, comm=None) == quiet
    (busy,) = set(caveats(compute=0.09, comm=0.52)) - set(quiet)
    assert "9% of its cores while lookups were measured and 52% of its cores while collectives" in busy


def test_lookup_costs_are_floats_and_all_costs_are_for_the_training_batch_by_default(compute_model, comm_model, tables):
    models = CostModels(compute_model, comm_model)
    shards = [Shard(table, 0, 16) for table in tables[:4]]
    forward_ms, backward_ms = models.compute_ms(shards)
    assert isinstance(forward_ms, float)
    assert (forward_ms, backward_ms) == models.compute_ms(shards, 512)
    assert models.compute_ms([]) == (0.0, 0.0)
    forward, backward = models.comm_ms([64, 64, 32], [0, 0, 1], 512)
    assert forward.shape == backward.shape == (3,)
    np.testing.assert_array_equal(forward, models.comm_ms([64, 64, 32], [0, 0, 1])[0])


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"batch_size": 7}, "batch_size"),
        ({"provenance": {"hardware": {"cpu_model": "another"}}}, "another"),
    ],
)
def test_models_of_different_machines_or_batches_are_refused(compute_model, comm_model, change, told):
    hardware = {"hardware": {"cpu_model": "this"}}
    compute = dataclasses.replace(compute_model, provenance=hardware)
    comm = dataclasses.replace(comm_model, **{"provenance": hardware, **change})
    with pytest.raises(CostModelError, match=told):
        CostModels(compute, comm)


@pytest.mark.parametrize("name", shipped_names())
def test_shipped_models_plan_for_large_clusters_and_say_that_costs_are_modelled(name):
    models = load_cost_models(name)
    tables = [Table(f"t{index}", 4_000_000, 64, 20.0) for index in range(16)]
    plan = shard(ShardingTask(tables, world_size=16, batch_size=65536, memory_bytes=2**36), models, "neuroshard")
    assert set(plan.ranks) == set(range(16))
    assert 0 < plan.predicted_cost_ms < np.inf
    assert {caveat.partition(":")[0] for caveat in plan.caveats} == {"modelled"}
    assert len(plan.caveats) == 3  # compute, communication, and the other parts of a step
    assert "modelled" in repr(models)
    one, all_ms = models.compute_ms([whole(tables[0])]), models.compute_ms([whole(table) for table in tables])
    assert 0 < sum(one) < sum(all_ms)


@pytest.mark.parametrize("name", shipped_names())
def test_shipped_models_were_trained_on_the_present_lab(name):
    models, lab = load_cost_models(name), LAB[name]
    network = network_preset(lab["network"]).model_dump(mode="json")
    for model in (models.compute, models.comm, models.step):
        hardware = model.provenance["hardware"]
        present = modelled_device(lab["modelled_device"]).model_dump(mode="json")
        assert hardware["modelled_device"] == present, "run `make shipped-models`"
        assert hardware["topology"] == {"preset": lab["network"], **network}, "run `make shipped-models`"


def test_every_environment_of_the_lab_has_shipped_models():
    assert set(shipped_names()) == {values["shipped_models"] for values in LAB.values()} == set(LAB)


def test_shipped_models_have_no_versions():
    with pytest.raises(CostModelError, match="h100 have no versions"):
        load_cost_models("h100", OLD)


def test_the_error_about_a_missing_folder_names_the_shipped_models(tmp_path):
    with pytest.raises(CostModelError, match=r"nowhere: no such folder.*a100, h100, h200"):
        load_cost_models(tmp_path / "nowhere")


def test_a_file_in_place_of_the_folder_is_refused_as_such(tmp_path):
    (tmp_path / "models.txt").touch()
    with pytest.raises(CostModelError, match=r"models\.txt: is not a folder; train"):
        load_cost_models(tmp_path / "models.txt")

"""A stopped run resumes: no job (one sharder on one task) runs twice, and what changes a plan changes its job's key."""

import dataclasses

import numpy as np
import pandas as pd
import pytest
from search.tasks import random_tables

import neuroshard_pipeline as ns
from neuroshard_pipeline.evaluation.solving import BenchmarkJobs, gather, solve_missing
from neuroshard_pipeline.evaluation.suite_params import BenchmarkSharderParams
from neuroshard_pipeline.sharders.base import SharderSettings
from neuroshard_pipeline.sharders.policies.policy import NO_POLICIES, Policies, Policy
from neuroshard_pipeline.sharders.registry import solve_all
from neuroshard_pipeline.tables.frames import tasks_to_frame
from neuroshard_pipeline.tables.task import ShardingTask
from neuroshard_pipeline.workers import Outcome

PARAMS = BenchmarkSharderParams(
    sharders=("random", "size_greedy", "neuroshard"),
    seed=5,
    left_out={"other": ("neuroshard",)},
)


def here(function, jobs):
    """Run every job in this process."""
    for index, job in enumerate(jobs):
        yield Outcome(index, function(job), None)


@pytest.fixture
def tasks():
    tables = random_tables(np.random.default_rng(0), 6, dims=(16, 32))
    weights = sum(table.weight_bytes for table in tables)
    roomy = ShardingTask(tables, 2, 64, weights, task_id="roomy")
    return [roomy, dataclasses.replace(roomy, memory_bytes=8, task_id="hopeless")]


def in_suites(tasks, suites=("some", "some")):
    frames = [tasks_to_frame([task]).assign(suite=suite) for task, suite in zip(tasks, suites, strict=True)]
    return pd.concat(frames).assign(group="all", is_measured=True)


@pytest.fixture
def jobs(tasks, finished_run):
    return BenchmarkJobs.of(
        in_suites(tasks), PARAMS, ns.load_cost_models(finished_run / "06_models"), SharderSettings()
    )


def test_every_job_is_an_attempt_and_plans_are_those_of_solve_all(jobs, tasks):
    plans, attempts = gather(jobs, dict(solve_missing(jobs, {}, here)))
    pairs = [("roomy", name) for name in PARAMS.sharders] + [("hopeless", name) for name in PARAMS.sharders]
    assert list(attempts[["task_id", "sharder"]].itertuples(index=False, name=None)) == pairs
    assert attempts["error"].notna().tolist() == (attempts["task_id"] == "hopeless").tolist()
    alone = solve_all([tasks[0]], PARAMS.sharders, jobs.models, jobs.settings, PARAMS.seed).plans
    assert [(ours.ranks, ours.predicted) for ours in plans] == [(plan.ranks, plan.predicted) for plan in alone]


def test_only_what_is_missing_is_solved(jobs):
    records = dict(solve_missing(jobs, {}, here))
    assert len(records) == len(jobs.jobs)
    assert list(solve_missing(jobs, records, here)) == []
    lost = jobs.jobs[1].key
    rest = {key: (lambda frame=frame: frame) for key, frame in records.items() if key != lost}
    (found,) = solve_missing(jobs, rest, here)
    assert found[0] == lost
    columns = [column for column in found[1] if column != "seconds"]
    pd.testing.assert_frame_equal(found[1][columns], records[lost][columns])


def test_everything_that_determines_a_plan_is_part_of_the_key(jobs, tasks, monkeypatch):
    def keys(tasks=tasks, params=PARAMS, models=jobs.models, settings=jobs.settings, policies=NO_POLICIES):
        return {job.key for job in BenchmarkJobs.of(in_suites(tasks), params, models, settings, policies).jobs}

    def other_models(name):
        other = dataclasses.replace(getattr(jobs.models, name), provenance={"trained on": "something else"})
        return dataclasses.replace(jobs.models, **{name: other})

    unchanged = keys()
    assert unchanged == {job.key for job in jobs.jobs}
    settings = SharderSettings(search=jobs.settings.search.model_copy(update={"beam_width": 1}))
    changed = {
        "task": keys(tasks=[dataclasses.replace(task, memory_bytes=9) for task in tasks]),
        "settings": keys(settings=settings),
        "seed": keys(params=PARAMS.model_copy(update={"seed": 6})),
        **{name: keys(models=other_models(name)) for name in ("compute", "comm", "step")},
        "no step": keys(models=dataclasses.replace(jobs.models, step=None)),
    }
    monkeypatch.setattr("neuroshard_pipeline.evaluation.solving._source_digest", lambda: "older code")
    changed["code"] = keys()
    assert [name for name, found in changed.items() if found & unchanged] == []

    def learned_keys(scale):
        policies = Policies(autoshard=Policy("autoshard", {}, np.zeros(2), np.full(2, scale)))
        return keys(params=PARAMS.model_copy(update={"sharders": ("autoshard",)}), policies=policies)

    assert learned_keys(1.0) == learned_keys(1.0)
    assert not learned_keys(1.0) & learned_keys(2.0)


def test_a_job_that_was_aborted_counts_as_not_solved(jobs):
    def hanging(function, left):
        for index, job in enumerate(left):
            hangs = job.sharder == "neuroshard"
            yield Outcome(index, None, "timed out") if hangs else Outcome(index, function(job), None)

    _, attempts = gather(jobs, dict(solve_missing(jobs, {}, hanging)))
    own = attempts[attempts["sharder"] == "neuroshard"]
    assert own["error"].str.contains("was aborted: timed out").all()
    assert own["seconds"].isna().all()


def test_a_sharder_that_is_left_out_does_not_run(jobs, tasks):
    both = BenchmarkJobs.of(in_suites(tasks, ("some", "other")), PARAMS, jobs.models, jobs.settings)
    who = {
        task_id: [job.sharder for job in both.jobs if job.task.task_id == task_id] for task_id in ("roomy", "hopeless")
    }
    assert who == {"roomy": ["random", "size_greedy", "neuroshard"], "hopeless": ["random", "size_greedy"]}


def test_plans_of_several_hosts_are_read_from_records(tasks):
    """The task does not state its ranks per host; the shipped models of the H100 are for eight ranks per host."""
    several = dataclasses.replace(tasks[0], world_size=16)
    params = PARAMS.model_copy(update={"sharders": ("size_greedy",)})
    jobs = BenchmarkJobs.of(in_suites([several], ("some",)), params, ns.load_cost_models("h100"), SharderSettings())
    (found,), _ = gather(jobs, dict(solve_missing(jobs, {}, here)))
    assert found.task.local_world_size == 8

"""Plans from the plan that runs: `kedro run --pipeline replan --params replan.present.path=plan.json`."""

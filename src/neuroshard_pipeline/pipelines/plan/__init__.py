"""Makes a plan for your own tables: `kedro run --pipeline plan --params plan.task.tables=my_tables.csv`."""

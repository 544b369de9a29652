"""Stage search: solves the tasks with every sharder, and compares the plans by predicted and measured cost."""

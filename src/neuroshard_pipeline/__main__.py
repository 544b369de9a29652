"""`neuroshard-pipeline plan`, which needs no project folder; any other arguments are those of `kedro run`."""

import sys
from pathlib import Path


def main() -> None:
    """Run the command `plan`, or else the pipeline that the command line names, or the default one."""
    if sys.argv[1:2] == ["plan"]:
        from neuroshard_pipeline.plan_command import plan

        plan.main(sys.argv[2:], prog_name="neuroshard-pipeline plan")
    from kedro.framework.project import configure_project

    from neuroshard_pipeline.cli import run

    configure_project(Path(__file__).parent.name)
    run()


if __name__ == "__main__":
    main()

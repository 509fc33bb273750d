"""What commands print, as plain text: user strings are shown, never interpreted."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from asterism.evals.result import Result
    from asterism.train.plan import Plan


def say(text: object) -> None:
    from asterism.viz.console import visible

    print(visible(text))


def warn(message: str, style: str) -> None:
    from asterism.viz.console import plain_console

    plain_console(stderr=True, soft_wrap=True).print(message, style=style)


def show_result(result: Result) -> None:
    """A table of values: one row per metric, one column per encoder."""
    from rich.table import Table

    from asterism.viz.console import plain_console, visible

    table = Table("", visible(result.model.name), *map(visible, result.baselines))
    for column in table.columns[1:]:
        column.justify = "right"
    for name, value in result.values.items():
        others = (baseline.get(name) for baseline in result.baselines.values())
        table.add_row(visible(name), *("" if number is None else f"{number:.2f}" for number in (value, *others)))
    console = plain_console(soft_wrap=True)
    console.print(f"{result.protocol}: {result.test.images:,} images of {result.test.name}", style="bold")
    console.print(table, soft_wrap=False)
    for note in result.notes:
        console.print(note)
    if result.path is not None:
        console.print(f"Written to {result.path}")


def show_plan(plan: Plan) -> None:
    from asterism.train.plan import LONG_HOURS, advice
    from asterism.train.resolve import describe
    from asterism.viz.console import plain_console

    console = plain_console()
    console.print(describe(plan.recipe, plan.images, plan.parameters, plan.device, plan.processes))
    console.print(plan.table())
    if plan.hours > LONG_HOURS:
        console.print(advice(plan.recipe, plan.device))

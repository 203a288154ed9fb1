"""The commands `weft train` and `weft play`: training by acting in a world, and what the policy does there."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from weft.commands.common import console, print_json, printable, say, told
from weft.commands.job.acting import Acting
from weft.commands.options import AsJson, Debug, Quiet, Run, filled

if TYPE_CHECKING:
    from weft.commands.job import PlayJob
    from weft.core.values import Json

__all__ = ["register", "train_and_tell"]

_WORLD = "A world: gymnasium's by its id, CartPole-v1, or one of `weft list worlds`, cart-pole; several are groups."


def register(app: typer.Typer) -> None:
    """Adds the commands."""
    app.command()(train)
    app.command()(play)


@filled(Acting, "options")
def train(
    world: Annotated[list[str], typer.Argument(help=_WORLD, metavar="WORLD", show_default=False)],
    options: Acting,
    out: Annotated[
        Path | None, typer.Option(help="The run's folder; by default a new one in runs/.", show_default=False)
    ] = None,
    film: Annotated[
        bool, typer.Option("--film", help="Make a film of the trained policy, for the run's page.")
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace the run that is in the folder.")] = False,
    json: AsJson = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Train by acting in a world and keep the run in a folder; the best policy by evaluation is kept.

    At each record fresh episodes are played by the best actions, and at the end as many as --episodes says.
    """
    with told(debug):
        from weft.commands.job import PlayJob, clear, new_folder

        job = PlayJob(tuple(world), options)
        objective = options.make_objective()
        learner = options.make_learner(objective, job.places, None, verbose=False).set_params(keep=None)
        options.source(objective, job.places)
        learner.settings()  # raises for what is out of range, before an old run is given up
        folder = out if out is not None else new_folder(Path(world[0].replace("/", "-")))
        clear(folder, force=force)
        train_and_tell(job, folder, resume=False, json=json, quiet=quiet, film=film)


def train_and_tell(job: PlayJob, folder: Path, *, resume: bool, json: bool, quiet: bool, film: bool = False) -> None:
    """Trains with a bar on a terminal; Ctrl-C keeps the state and says how to go on."""
    from weft.commands.job import play as played
    from weft.commands.job import train_in

    try:
        result = train_in(job, folder, verbose=sys.stdout.isatty() and not (json or quiet), resume=resume)
    except KeyboardInterrupt:
        say(f"interrupted; go on with: weft resume {folder}")
        raise typer.Exit(130) from None
    if film:
        result["film"] = played(folder, episodes=1, gif=folder / "film.gif")["worlds"][0]["film"]
    if json:
        print_json(result)
    elif not quiet:
        _print_trained(result)


def _print_trained(result: Json) -> None:
    import shlex

    from rich.table import Table
    from rich.text import Text

    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    table.add_column(style="cyan", no_wrap=True)
    table.add_column()
    for one in result["evaluation"]["worlds"]:
        table.add_row(Text(printable(f"return in {one['world']}")), Text(printable(one["said"])))
    note = f"{result['strategy']}, {result['seconds']:.1f} s"
    if result.get("resumed_at") is not None:
        note += f"; resumed at step {result['resumed_at']}"
    steps = "" if result["env_steps"] is None else f", {result['env_steps']:,} steps of the world"
    table.add_row("updates", Text(printable(f"{result['steps']:,}{steps} ({note})")))
    if film := result.get("film"):
        table.add_row("film", Text(printable(f"{film['path']} ({film['pictures']} pictures)")))
    table.add_row("run", Text(printable(result["run"])))
    screen, run = console(), printable(shlex.quote(result["run"]))
    screen.print(table)
    screen.print(Text(f"next: weft play {run} --gif film.gif\n      weft show {run}\n      weft report {run}"))


def play(
    run: Run,
    world: Annotated[
        str | None, typer.Option(help="Another world of the same kind; default: that of training.", show_default=False)
    ] = None,
    episodes: Annotated[int, typer.Option(help="Fresh episodes, of each copy.", min=1)] = 10,
    gif: Annotated[Path | None, typer.Option(help="A film of the first episode.", show_default=False)] = None,
    replica: Annotated[
        int | None, typer.Option(help="One of the copies; the film's default is the best.", show_default=False)
    ] = None,
    drawn: Annotated[bool, typer.Option("--drawn", help="Draw actions instead of taking the best.")] = False,
    bound: Annotated[
        float | None, typer.Option(help="A return; the share of episodes that reach it is told.", show_default=False)
    ] = None,
    seed: Annotated[int, typer.Option(help="What fixes the episodes.")] = 0,
    force: Annotated[bool, typer.Option("--force", help="Replace the film.")] = False,
    json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Play fresh episodes with a trained policy: what they earn, with a 95% interval, and a film of the first."""
    with told(debug):
        from weft.commands.common import new_file
        from weft.commands.job import play as played

        new_file(gif, force, "the film")
        result = played(
            run, world=world, episodes=episodes, gif=gif, replica=replica, drawn=drawn, bound=bound, seed=seed
        )
        if json:
            print_json(result)
            return
        for one in result["worlds"]:
            typer.echo(printable(f"return in {one['world']}: {one['said']}"))
            if film := one.get("film"):
                whose = "" if film["replica"] is None else f" of replica {film['replica']}"
                shown = f"{film['pictures']} pictures{whose}; return {film['return']:.4g}"
                typer.echo(printable(f"film: {film['path']} ({shown})"))

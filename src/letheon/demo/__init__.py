"""`letheon demo`: the main job end to end, as a list of small acts.

A new act is a function of the `Scene` and a line in `ACTS`. Acts find things out with
`Scene.check`; the demo fails if one of them was false.
"""

import time
from collections.abc import Callable
from typing import NamedTuple

from rich.console import Console

from letheon.demo import _models, _trust
from letheon.demo._scene import Scene, set_scene
from letheon.terminal import PlainConsole

__all__ = ["ACTS", "Act", "play"]


class Act(NamedTuple):
    """One part of the demo."""

    title: str
    play: Callable[[Scene], None]


def play(seed: int = 0, console: Console | None = None) -> bool:
    """Play all acts.

    Parameters
    ----------
    seed : int, default=0
        Seed of the models.
    console : rich.console.Console, optional
        Where to print; by default standard output.

    Returns
    -------
    bool
        Whether everything that was claimed turned out true.
    """
    begin = time.perf_counter()
    scene = set_scene(console or PlainConsole(), seed)
    for number, act in enumerate(ACTS, start=1):
        scene.console.print(f"\n[bold]{number}. {act.title}[/bold]")
        act.play(scene)
    for claim in scene.failures:
        scene.console.print(f"\n[bold red]NOT TRUE:[/bold red] {claim}")
    scene.console.print(f"\nDone in {time.perf_counter() - begin:.1f} s.")
    return not scene.failures


ACTS: tuple[Act, ...] = (
    Act("People and their rows", _models.meet),
    Act("Train", _models.train),
    Act("Six people leave, one after the other", _models.forget),
    Act("Is it really as if they had never been there?", _models.compare),
    Act("Save, load, forget again", _models.keep),
    Act("A request that cannot be served", _models.refuse),
    Act("A forest: forget now, grow later", _models.regrow),
    Act("A regression: one step and secret noise", _models.step),
    Act("Nets: exactly, or by an estimate", _models.deepen),
    Act("Which method? Say what you need", _models.choose_method),
    Act("Measure it", _models.measure),
    Act("Attack it", _models.attack),
    Act("Watch it", _models.watch),
    Act("A report", _models.report),
    Act("What this means", _models.explain),
    Act("The whole story: asked, erased, certified, purged, audited", _trust.erase),
    Act("The same with pages and an API", _models.open_desk),
    Act("A file from a stranger", _trust.distrust),
)

"""Pictures as SVG: text stays text, there is no background, and the colours read on light and on dark pages.

A picture may be shown as a file or be put into a page together with others, so it has no prologue, links to
nothing, and every id and class in it begins with a digest of the picture's name.
"""

from __future__ import annotations

import html
import io
import re
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from weft.bench.compact import compact

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.colors import LinearSegmentedColormap
    from matplotlib.figure import Figure

__all__ = ["BLUE", "GREEN", "INK", "ORANGE", "PINK", "SOFT", "blank", "canvas", "note", "ramp", "svg"]

# Each has a contrast of about 3 or more on white and on near-black. What is drawn in INK, text above all, is dark on a
# light page and light on a dark one, with a contrast of 8 or more.
BLUE, ORANGE, GREEN, PINK = "#2f82d0", "#dd7a1f", "#1f9968", "#cc4f8d"
INK, SOFT = "#757b85", "#8d939c"

_STYLE: Any = {
    "svg.fonttype": "none",
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 10.0,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": SOFT,
    "axes.linewidth": 0.8,
    "axes.titlesize": 11.0,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.titlepad": 8.0,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.unicode_minus": True,
    "grid.color": SOFT,
    "grid.alpha": 0.22,
    "grid.linewidth": 0.7,
    "xtick.color": SOFT,
    "ytick.color": SOFT,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "xtick.labelsize": 9.0,
    "ytick.labelsize": 9.0,
    "xtick.minor.visible": False,
    "ytick.minor.visible": False,
    "xtick.major.size": 3.0,
    "ytick.major.size": 3.0,
    "lines.linewidth": 2.2,
    "lines.solid_capstyle": "round",
    "legend.frameon": False,
    "legend.fontsize": 9.0,
    "figure.facecolor": "none",
    "axes.facecolor": "none",
    "savefig.facecolor": "none",
    "path.simplify": True,
    "path.simplify_threshold": 0.4,
}
_DARK, _LIGHT = "#454b54", "#b9bfc8"
_FONTS = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', 'DejaVu Sans', sans-serif"


@contextmanager
def canvas(panels: int = 1, *, size: tuple[float, float] | None = None, **layout: Any) -> Iterator[tuple[Figure, Any]]:
    """A figure and its axes (a list of them for several panels in a row), in the style of all pictures.

    Args:
        panels: axes beside each other.
        size: width and height in inches; by default 4.6 x 3.5 for each panel.
        layout: further arguments of `Figure.subplots`, such as `width_ratios` or `sharey`.
    """
    import matplotlib
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    with matplotlib.rc_context(_STYLE):
        figure = Figure(figsize=size or (4.6 * panels, 3.5), layout="constrained")
        FigureCanvasSVG(figure)
        engine: Any = figure.get_layout_engine()
        engine.set(w_pad=0.08, h_pad=0.06)
        axes = figure.subplots(1, panels, squeeze=False, **layout)[0]
        yield figure, (axes[0] if panels == 1 else list(axes))


def svg(figure: Figure, *, name: str, alt: str) -> str:
    """The figure as SVG text that can stand alone or within a page.

    Args:
        figure: a matplotlib figure.
        name: ids begin with its digest; the same picture is the same text.
        alt: what it shows, for those who do not see it.

    >>> with canvas(size=(2, 1)) as (figure, ax):
    ...     _ = ax.plot([0, 1], [1, 0])
    ...     text = svg(figure, name="line", alt="a line that falls")
    >>> text[:4], 'role="img"' in text, "DOCTYPE" in text, "<title>a line that falls</title>" in text
    ('<svg', True, False, True)
    """
    import matplotlib

    stream = io.StringIO()
    bare = dict.fromkeys(("Creator", "Date", "Format", "Type"))
    with matplotlib.rc_context({**_STYLE, "svg.hashsalt": name}):
        figure.savefig(stream, format="svg", metadata=bare, transparent=True)
    text = stream.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<!--.*?-->\s*", "", text, flags=re.DOTALL)
    short = f"p{zlib.crc32(name.encode()):08x}"
    for before in ('id="', 'href="#', "url(#"):
        text = text.replace(before, f"{before}{short}-")
    text = text.replace("'DejaVu Sans', sans-serif", _FONTS).replace("'DejaVu Sans'", _FONTS)
    text = compact(text.replace(f": {INK}", ": var(--ink)"), short)
    head, rest = text.split(">", 1)
    inks = f".{short}{{--ink:{_DARK}}}@media(prefers-color-scheme:dark){{.{short}{{--ink:{_LIGHT}}}}}"
    told = f"<title>{html.escape(alt, quote=False)}</title><style>{inks}</style>"
    return f'{head} role="img" class="{short}">\n {told}{rest}'


def ramp(*colours: str) -> LinearSegmentedColormap:
    """A colour map through the colours given."""
    from matplotlib.colors import LinearSegmentedColormap

    return LinearSegmentedColormap.from_list("ramp", list(colours))


def blank(ax: Axes) -> None:
    """Takes away what belongs to numbers (ticks, frame, grid), where a panel shows a shape."""
    ax.grid(False)
    ax.set(xticks=[], yticks=[])
    ax.spines[:].set_visible(False)


def note(ax: Axes, x: float, y: float, text: str, colour: str = INK, **more: Any) -> None:
    """A label beside a line, in the line's colour, at data coordinates."""
    ax.text(x, y, text, **{"color": colour, "fontsize": 9.5, "fontweight": "bold", **more})

"""Drawings of figures, from the tables of their runs.

The same tables give the same bytes on one machine, with any number of threads: t-SNE runs on one.

Legend: n rows, F activations, R rounds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib.util import find_spec
from textwrap import fill
from typing import TYPE_CHECKING, Any

import numpy as np

from raysim.display.canvas import COLOURS, heat_map, set_whole, style
from raysim.errors import SettingsError
from raysim.numbers.arrays import Array
from raysim.workloads.papers.figure import Figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas

Columns = Mapping[str, Array]
Tables = Mapping[str, Columns]
"""Per run, by its name, the columns of the table that is drawn."""
EQUAL = 1e-13
"""Divergence below which a model equals the reference up to rounding."""
PANEL = 3.4
"""Width and height of a panel, in inches."""
ABREAST = 3
"""Panels that are drawn side by side: of curves, or the rounds of a run."""
PACKAGES = {"matplotlib": "matplotlib", "sklearn": "scikit-learn"}
TITLE, NOTE = 11, 14
"""Characters of the title and of notes in an inch."""
LEGEND, LINE = 1.7, 0.18
"""Width of the legend, and height of a note's line, in inches."""


def _panels(canvas: Canvas, rows: int, columns: int) -> list[Axes]:
    canvas.set_size_inches(max(PANEL * columns, 5), PANEL * rows + 0.6)
    return [*canvas.subplots(rows, columns, squeeze=False).flat]


def _chosen(columns: Columns, which: Array) -> dict[str, Array]:
    return {name: values[which] for name, values in columns.items()}


def _values(figure: Figure, columns: Columns) -> Array:
    """Return the values that are drawn [n]; of two columns, the difference."""
    first, *others = (columns[name] for name in figure.values)
    return np.asarray(first - others[0] if others else first)


def _split(figure: Figure, columns: Columns) -> dict[str, dict[str, Array]]:
    """Return the rows in which a column is true, and the other rows, by title."""
    if "split" not in figure.options:
        return {"": {**columns}}
    name, true, false = figure.options["split"]
    which = columns[name].astype(bool)
    return {true: _chosen(columns, which), false: _chosen(columns, ~which)}


def _means(over: Array, values: Array) -> tuple[Array, Array]:
    """Return the places [R] of rows, and the mean of the values at each; rows without one left out.

    Args:
        over: Place of each row, such as its round [n].
        values: Its value [n].
    """
    known = np.isfinite(values)
    places = np.unique(over[known])
    return places, np.array([values[known & (over == place)].mean() for place in places])


def drawn_rows(figure: Figure, columns: Columns) -> dict[str, Array]:
    """Return the rows that a figure draws: of the last round, or of some values in columns."""
    rows = {**columns}
    if figure.options.get("last"):
        rows = _chosen(rows, rows["round"] == rows["round"].max())
    for name, value in figure.options.get("only", {}).items():
        rows = _chosen(rows, rows[name] == value)
    return rows


def _shown(rounds: Iterable[int], wanted: Sequence[int]) -> list[int]:
    """Return the wanted rounds of a run, or its last ones if it has none of them."""
    known = sorted(set(rounds))
    return [number for number in known if number in wanted] or known[-len(wanted) :]


def _curves(canvas: Canvas, figure: Figure, tables: Tables) -> None:
    """Draw the mean of each round's rows against the rounds, or of another column's values.

    Runs of a panel share it. Parts of the rows stand side by side, or below each other if there are
    several panels. A line's colour depends only on its label, even if runs are missing; lines
    beyond the colours are dashed.
    """
    labels = [*dict.fromkeys(run.label for run in figure.runs if run.drawn)]
    runs = [run for run in figure.runs if run.name in tables]
    known = {run.panel for run in runs}
    panels = [panel for panel in dict.fromkeys(run.panel for run in figure.runs) if panel in known]
    parts, over = _parts(figure, tables), figure.options.get("x", "round")
    abreast, step = len(parts), 1
    if len(panels) > 1:
        abreast = min(len(panels), ABREAST)
        step = -(-len(panels) // abreast) * abreast
    places = _panels(canvas, step * len(parts) // abreast, abreast)
    for axes in places:
        axes.set_axis_off()
    for place, (title, lines) in enumerate(parts.items()):
        for position, panel in enumerate(panels):
            axes = places[place * step + position]
            axes.set_axis_on()
            for run in runs:
                if run.panel == panel:
                    columns, values = lines[run.name]
                    number = labels.index(run.label)
                    dashed = "-" if number < COLOURS else "--"
                    look: dict[str, Any] = {"color": f"C{number}", "marker": "."}
                    axes.plot(*_means(columns[over], values), dashed, label=run.label, **look)
            if figure.options.get("log"):
                axes.set_yscale("log")
            above = "\n".join(filter(None, (panel, title if figure.axis else "")))
            axes.set(xlabel=over, ylabel=figure.axis or title, title=above)


def _parts(figure: Figure, tables: Tables) -> dict[str, dict[str, tuple[Columns, Array]]]:
    """Return the rows and the values of each run, by the title of a part of them and its name."""
    if titles := figure.options.get("apart"):
        return {
            title: {name: (columns, columns[value]) for name, columns in tables.items()}
            for title, value in zip(titles, figure.values, strict=True)
        }
    rows_by_run = {name: _split(figure, columns) for name, columns in tables.items()}
    return {
        title: {
            name: (split_rows[title], _values(figure, split_rows[title]))
            for name, split_rows in rows_by_run.items()
        }
        for title in next(iter(rows_by_run.values()))
    }


def _over_setting(canvas: Canvas, figure: Figure, tables: Tables) -> None:
    """Draw the value of each run's last round against a setting on a logarithmic axis.

    The runs of a label in a panel are a line. A run without a place on the axis is a level, a
    dashed line in all panels.
    """
    runs = [run for run in figure.runs if run.name in tables]
    last = {run.name: _values(figure, tables[run.name]).mean() for run in runs}
    labels = [*dict.fromkeys(run.label for run in figure.runs)]
    panels = [*dict.fromkeys(run.panel for run in figure.runs if run.at is not None)]
    for axes, panel in zip(_panels(canvas, 1, len(panels)), panels, strict=True):
        for number, label in enumerate(labels):
            of_label = [run for run in runs if run.label == label]
            points = sorted((run.at, last[run.name]) for run in of_label if run.panel == panel)
            if points:
                axes.plot(*zip(*points, strict=True), ".-", label=label, color=f"C{number}")
            for level in (last[run.name] for run in of_label if run.at is None):
                axes.axhline(level, linestyle="--", label=label, color=f"C{number}")
        axes.set_xscale("log")
        axes.set(xlabel=figure.options["setting"], ylabel=figure.axis, title=panel)


def _layers(canvas: Canvas, figure: Figure, tables: Tables) -> None:
    """Draw values by layer, a line per round after the round of the reference."""
    for axes, (label, columns) in zip(_panels(canvas, 1, len(tables)), tables.items(), strict=True):
        values = _values(figure, columns)
        rounds = np.unique(columns["round"])
        equal = [r for r in rounds if values[columns["round"] == r].max() < EQUAL]
        for number in rounds[rounds > max(equal, default=0)]:
            of_round = columns["round"] == number
            axes.plot(columns["layer"][of_round], values[of_round], ".-", label=f"round {number}")
        axes.set(xlabel="layer", ylabel=figure.axis, title=label)


def _embedding(canvas: Canvas, figure: Figure, tables: Tables) -> None:
    """Draw a t-SNE of each round's activations: colours are classes, letters clients.

    The runs stand side by side, each with ABREAST rounds in a row.
    """
    from matplotlib import colormaps

    shown = {label: _shown(c["round"], figure.options["rounds"]) for label, c in tables.items()}
    most = max(map(len, shown.values()))
    abreast = min(most, ABREAST)
    panels = _panels(canvas, -(-most // abreast), abreast * len(tables))
    for axes in panels:
        axes.set_axis_off()
    classes = np.unique(np.concatenate([columns["label"] for columns in tables.values()]))
    colours = colormaps["tab10" if classes.max() < 10 else "tab20"]
    for place, (label, columns) in enumerate(tables.items()):
        for position, number in enumerate(shown[label]):
            row, column = divmod(position, abreast)
            axes = panels[(row * len(tables) + place) * abreast + column]
            rows = _chosen(columns, columns["round"] == number)
            points = _tsne(np.stack([*rows["activations"]]))
            for client in np.unique(rows["client"]):
                is_of_client = rows["client"] == client
                marker = f"${chr(ord('A') + client % 26)}$"
                c = colours(rows["label"][is_of_client] % colours.N)
                x, y = points[is_of_client].T
                axes.scatter(x, y, c=c, s=40, marker=marker, linewidths=0.2)
            axes.set_axis_on()
            axes.set(xticks=[], yticks=[], title=f"{label}, round {number}")
    for class_number in classes:
        panels[0].scatter(
            [], [], color=colours(class_number % colours.N), label=f"class {class_number}"
        )


def _tsne(activations: Array) -> Array:
    """Return points [n, 2] in the plane, near each other if activations [n, F] are."""
    from sklearn.manifold import TSNE
    from threadpoolctl import threadpool_limits

    perplexity = min(30.0, max((len(activations) - 1) / 4, 1.0))
    placed = TSNE(perplexity=perplexity, init="pca", random_state=0)
    with threadpool_limits(1):  # several threads add in another order, and t-SNE is chaotic
        return np.asarray(placed.fit_transform(activations))


def _distribution(canvas: Canvas, figure: Figure, tables: Tables) -> None:
    """Draw a histogram of the rows, a line a run; n are the drawn rows of each."""
    log = figure.options.get("log", False)
    parts: dict[str, dict[str, Array]] = {}
    for label, columns in tables.items():
        for title, rows in _split(figure, columns).items():
            values = _values(figure, rows)
            parts.setdefault(title, {})[label] = values[values > 0] if log else values
    every = np.concatenate([values for by_run in parts.values() for values in by_run.values()])
    bins: Any = 30
    if len(every):
        low, high = every.min(), every.max()
        bins = np.geomspace(low, high, 31) if log else np.linspace(low, high + 1e-12, 31)
    for axes, (title, by_run) in zip(_panels(canvas, 1, len(parts)), parts.items(), strict=True):
        for label, values in by_run.items():
            axes.hist(values, bins, histtype="step", label=label)
        if log:
            axes.set_xscale("log")
        counts = f"n = {', '.join(str(len(values)) for values in by_run.values())}"
        axes.set(xlabel=figure.axis, ylabel="samples", title=f"{title}\n{counts}".strip())


def _deciles(canvas: Canvas, figure: Figure, tables: Tables) -> None:
    """Draw the median against the rounds, and the band from the first to the last decile."""
    [axes] = _panels(canvas, 1, 1)
    low, middle, high = figure.values[0], figure.values[len(figure.values) // 2], figure.values[-1]
    for label, columns in tables.items():
        rounds, median = _means(columns["round"], columns[middle])
        [line] = axes.plot(rounds, median, label=label)
        below, above = (_means(columns["round"], columns[name])[1] for name in (low, high))
        axes.fill_between(rounds, below, above, alpha=0.15, color=line.get_color())
    axes.set(xlabel="round", ylabel=figure.axis)


def _similarity(canvas: Canvas, figure: Figure, tables: Tables) -> None:
    """Draw a matrix of the pairs of models, a panel for each run and round."""
    shown = {label: _shown(c["round"], figure.options["rounds"]) for label, c in tables.items()}
    panels = _panels(canvas, len(tables), max(map(len, shown.values())))
    drawn = [(label, number) for label, numbers in shown.items() for number in numbers]
    image: Any = None
    for axes, (label, number) in zip(panels, drawn, strict=False):
        columns = tables[label]
        layer = np.unique(columns["layer"])[figure.options["layer"]]
        rows = _chosen(columns, (columns["round"] == number) & (columns["layer"] == layer))
        names = [*dict.fromkeys([*rows["first"], *rows["second"]])]
        matrix = np.eye(len(names))
        for first, second, value in zip(
            rows["first"], rows["second"], _values(figure, rows), strict=True
        ):
            i, j = names.index(first), names.index(second)
            matrix[i, j] = matrix[j, i] = value
        image = axes.imshow(matrix, vmin=0, vmax=1, cmap="viridis")
        axes.set(xticks=range(len(names)), yticks=range(len(names)))
        axes.set_xticklabels(names, rotation=90, fontsize="xx-small")
        axes.set_yticklabels(names, fontsize="xx-small")
        axes.set_title(f"{label}, round {number}", fontsize="small")
    canvas.colorbar(image, ax=panels, label=figure.axis)


def _heat_map(canvas: Canvas, figure: Figure, tables: Tables) -> None:
    """Draw a value for each client and class, a panel for each run."""
    panels = _panels(canvas, 1, len(tables))
    for axes, (label, columns) in zip(panels, tables.items(), strict=True):
        counts = np.zeros((columns["client"].max() + 1, columns["label"].max() + 1))
        counts[columns["client"], columns["label"]] = _values(figure, columns)
        heat_map(axes, counts, figure.axis)
        axes.set_title(label)


def _regions(canvas: Canvas, figure: Figure, tables: Tables) -> None:
    """Draw the classes that models predict in the plane, with samples of the clients.

    A row for each run, a panel for each client, then for the global model, which has the samples of
    all clients.
    """
    from matplotlib import colormaps

    models = {label: [*np.unique(c["client"])] for label, c in tables.items()}
    panels = iter(_panels(canvas, len(tables), max(map(len, models.values()))))
    colours = colormaps["tab10"]
    for label, columns in tables.items():
        point = columns["kind"] == "point"
        for client in [*filter(lambda c: c >= 0, models[label]), -1]:
            axes, is_of_client = next(panels), columns["client"] == client
            x1, x2, label_of = (columns[name] for name in ("x1", "x2", "label"))
            side = [np.unique(values[point & is_of_client]) for values in (x1, x2)]
            classes = label_of[point & is_of_client].reshape(len(side[0]), len(side[1])).T
            ends = (side[0][0], side[0][-1], side[1][0], side[1][-1])
            shown = colours(classes % colours.N)
            axes.imshow(shown, extent=ends, origin="lower", alpha=0.35, aspect="auto")
            samples = ~point & (is_of_client if client >= 0 else True)
            c = colours(label_of[samples] % colours.N)
            axes.scatter(x1[samples], x2[samples], c=c, s=6, linewidths=0)
            title = f"client {client}" if client >= 0 else "aggregated model"
            axes.set(xlim=ends[:2], ylim=ends[2:], xticks=[], yticks=[], title=f"{label}\n{title}")


def _scatter(canvas: Canvas, figure: Figure, tables: Tables) -> None:
    """Draw each client's value against the rounds, a panel for each run."""
    for axes, (label, columns) in zip(_panels(canvas, 1, len(tables)), tables.items(), strict=True):
        axes.scatter(columns["round"], _values(figure, columns), s=4)
        axes.set(xlabel="round", ylabel=figure.axis, title=label)


KINDS: Mapping[str, Callable[[Canvas, Figure, Tables], None]] = {
    "curves": _curves,
    "deciles": _deciles,
    "distribution": _distribution,
    "embedding": _embedding,
    "heat_map": _heat_map,
    "layers": _layers,
    "over_setting": _over_setting,
    "regions": _regions,
    "scatter": _scatter,
    "similarity": _similarity,
}


def check_packages() -> None:
    """Check that figures can be drawn.

    Raises:
        SettingsError: a package is missing.
    """
    for module, package in PACKAGES.items():
        if find_spec(module) is None:
            raise SettingsError(f"figure: needs {package}; pip install 'raysim-fl[plots]'")


def draw(figure: Figure, tables: Tables, notes: Sequence[str] = ()) -> Canvas:
    """Draw a figure; the legend stands next to its panels, notes below them."""
    from matplotlib.figure import Figure as Canvas

    canvas = Canvas(layout="constrained")
    rows = {name: drawn_rows(figure, columns) for name, columns in tables.items()}
    with style():
        KINDS[figure.draw](canvas, figure, rows)
        _finish(canvas, figure, notes)
    return canvas


def _finish(canvas: Canvas, figure: Figure, notes: Sequence[str]) -> None:
    """Add legend, title and notes around the panels."""
    for axes in canvas.axes:
        set_whole(axes)
        if axes.images:
            axes.grid(visible=False)
    _add_legend(canvas)
    width, height = canvas.get_size_inches()
    beside = LEGEND if canvas.legends else 0.0
    title = fill(figure.title, int((width - beside) * TITLE), break_on_hyphens=False)
    canvas.suptitle(f"{title}\n{figure.source}", fontsize="medium")
    text = "\n".join(fill(note, int(width * NOTE), break_on_hyphens=False) for note in notes)
    if text:
        canvas.supxlabel(text, fontsize="small")
        canvas.set_size_inches(width, height + LINE * (text.count("\n") + 1))


def _add_legend(canvas: Canvas) -> None:
    """Add one legend of the lines in all panels, and make room for it."""
    handles = {
        label: handle
        for axes in canvas.axes
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)
    }
    if handles:
        width, height = canvas.get_size_inches()
        canvas.set_size_inches(width + LEGEND, height)
        canvas.legend([*handles.values()], [*handles], loc="outside right upper", fontsize="small")

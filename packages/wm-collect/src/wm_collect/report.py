"""One self-contained page about a run, for whoever has to explain its curve.

`write_report` makes `report.html`: what the run was, how it learned, what its log says, and what
the agent's predictions are worth on episodes it plays (`wm_collect.diagnostics`). Pictures are part
of the file, nothing is loaded from elsewhere, and there is no script in it.
"""

import base64
import dataclasses
import html
import math
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from wm_collect import metrics, report_pictures
from wm_collect.agent import Agent
from wm_collect.diagnostics import Diagnostics, Grade, LogPanel, Verdict
from wm_collect.environment import Environment
from wm_collect.evaluate import Trajectory
from wm_collect.loop import RunState
from wm_collect.render import render_episode, save_animation
from wm_collect.run_folder import RunFolder
from wm_collect.seed_series import Rows, metric_names, seed_series

# An animation is part of the page, so it is kept small.
_FRAMES, _WIDTH, _HEIGHT, _FPS = 60, 320, 240, 12

# How a verdict is marked, for those who do not see its colour.
_MARKS = {Grade.GOOD: "✓", Grade.DOUBTFUL: "?", Grade.BAD: "✗", Grade.UNKNOWN: "·"}

_STYLE = """
:root { color-scheme: light dark; --page: #fbfbfa; --card: #fff; --ink: #22262a; --soft: #63696f;
  --line: #e1e3e5; --good: #1f8a4c; --doubtful: #b0720a; --bad: #c63a2b; --unknown: #7d838a; }
@media (prefers-color-scheme: dark) { :root { --page: #131517; --card: #1b1e21; --ink: #e6e8ea;
  --soft: #a2a8ae; --line: #303439; --good: #4fc07f; --doubtful: #e0a53d; --bad: #f0796b; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 1rem; max-width: 70rem; background: var(--page); color: var(--ink);
  font: 16px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.5rem; margin: .5rem 0 0; }
h2 { font-size: 1.2rem; margin: 2.2rem 0 .6rem; }
h3 { font-size: 1rem; margin: 0 0 .4rem; }
ul + h3 { margin-top: 1rem; }
p { margin: .4rem 0; }
.soft { color: var(--soft); }
.grid { display: grid; gap: 1rem;
  grid-template-columns: repeat(auto-fit, minmax(min(100%, 25rem), 1fr)); }
figure { margin: 0; padding: .8rem; background: var(--card); border: 1px solid var(--line);
  border-radius: .5rem; min-width: 0; }
figure img { display: block; width: 100%; max-width: 36rem; height: auto; margin: 0 auto; }
figure img.animation { max-width: 320px; border-radius: .3rem; }
figcaption { font-size: .9rem; }
table { border-collapse: collapse; width: 100%; background: var(--card); font-size: .9rem; }
th, td { padding: .35rem .6rem; border: 1px solid var(--line); text-align: left;
  vertical-align: top; overflow-wrap: anywhere; }
th { width: 10rem; font-weight: 600; }
@media (max-width: 30rem) { th { width: 7rem; } }
ul { list-style: none; margin: 0; padding: 0; }
.verdict { padding: .25rem .6rem; margin: .4rem 0; border-left: .3rem solid var(--unknown); }
.good { border-color: var(--good); } .doubtful { border-color: var(--doubtful); }
.bad { border-color: var(--bad); }
details { margin: 1rem 0; } summary { cursor: pointer; font-weight: 600; }
"""

_READ_LEARNING = (
    "The bold line is the mean return of the evaluation episodes; the band is one standard "
    "deviation over them. With several seeds the thin lines are the seeds, and the band is their "
    "range. Grey is training, with exploration."
)
_READ_HORIZON = (
    "From several rows of each episode the model predicts what follows from the actions that were "
    "taken; persistence predicts that nothing changes. Useful is the part where the model is below "
    "it, which should reach the dotted line."
)
_READ_REWARDS = (
    "Each point is one step; on the dashed line the prediction is right. A flat cloud means that "
    "the reward is not predicted at all, and then neither plans nor values can be good."
)
_READ_CONTINUATIONS = (
    "Steps are sorted into bins by the probability they were given; on the dashed line the "
    "probabilities are honest. Bins below it: the agent does not see the end coming."
)
_READ_VALUES = (
    "Each point is one row of an episode: what the agent expected there, over the discounted "
    "rewards that followed. Above the dashed line it expected too much. What a time limit cut off "
    "is filled in with the agent's own value of the last observation."
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Section:
    """What is known of one trained state on one task.

    Attributes:
        title: names it, e.g. "seed 0".
        returns: undiscounted return of each episode it played.
        diagnostics: what its predictions are worth on them.
        animation: the first episode as GIF data.
    """

    title: str
    returns: Sequence[float]
    diagnostics: Diagnostics
    animation: bytes | None = None


@dataclasses.dataclass(frozen=True)
class _Panel:
    """A picture and what is to be said about it."""

    title: str
    picture: bytes
    how_to_read: str
    verdict: Verdict | None = None


def diagnosed_section(
    agent: Agent, state: RunState, *, title: str, n_episodes: int, seed: int
) -> Section:
    """Play episodes with a state, and return what they say about it.

    Args:
        agent: the agent.
        state: a state without a seed axis.
        title: of the section.
        n_episodes: at least 1.
        seed: draws the episodes and the predictions.
    """
    episodes = agent.record_episodes(state, n_episodes=n_episodes, seed=seed)
    return section(
        title, agent.env, episodes, agent.diagnose(state, episodes, jax.random.key(seed))
    )


def section(
    title: str, env: Environment, episodes: Sequence[Trajectory], diagnostics: Diagnostics
) -> Section:
    """Return the section of recorded episodes, the first of which has its environment states."""
    return Section(
        title=title,
        returns=[float(np.sum(episode.reward[: episode.length])) for episode in episodes],
        diagnostics=diagnostics,
        animation=_animation(env, episodes[0]),
    )


def write_report(
    folder: RunFolder,
    *,
    title: str,
    facts: Mapping[str, str],
    rows: Rows,
    unit: str,
    log_panels: Sequence[LogPanel],
    sections: Sequence[Section],
    note: str,
) -> Path:
    """Write the report of a run into its folder, over an earlier one.

    Args:
        folder: the run folder.
        title: agent and task.
        facts: the table at the top, as label and text; see `run_facts`.
        rows: log rows.
        unit: what a timestep is, in the plural.
        log_panels: what of the log is drawn besides the returns.
        sections: the trained states, one by one; none where no checkpoint exists.
        note: which state was examined and how, or why none was.

    Returns:
        The path written.
    """
    learning = _Panel("Returns", report_pictures.learning_picture(rows, unit), _READ_LEARNING, None)
    log = [learning, *_log_panels(rows, log_panels, unit)]
    body = [
        f"<h1>{_text(title)}</h1>",
        f'<p class="soft">{_text(note)}</p>',
        _table(facts),
        *_set_up(folder.settings.get("description", {})),
        *_findings(sections),
        "<h2>What the log says</h2>",
        _grid(log),
        *(_section_html(part, is_open=i == 0) for i, part in enumerate(sections)),
    ]
    page = (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<link rel="icon" href="data:,">\n'
        f"<title>{_text(title)}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n"
        + "\n".join(body)
        + "\n</body>\n</html>\n"
    )
    folder.report.write_text(page, encoding="utf-8")
    return folder.report


def run_facts(folder: RunFolder, rows: Rows, unit: str, departures: str) -> dict[str, str]:
    """Return what a run was and how far it came, as label and text.

    Args:
        folder: the run folder.
        rows: its log rows.
        unit: what a timestep is, in the plural.
        departures: the settings that are not the paper's.
    """
    config = folder.config
    settings, run = config["settings"], config["settings"]["run"]
    last: Mapping[str, Any] = rows[-1] if rows else {}
    planned = run["n_timesteps"]
    done = last.get(metrics.TIMESTEP, 0)
    facts = {
        "run": folder.path.name,
        "command": " ".join(config.get("command", [])),
        "protocol": settings.get("protocol", ""),
        "seeds": ", ".join(map(str, run["seed"])),
        "timesteps": f"{done:,} {unit}"
        + (f" of {planned:,}: the run is not finished" if done < planned else ""),
        "updates": f"{last[metrics.N_UPDATES]:,}" if metrics.N_UPDATES in last else "",
        "duration": _duration(last.get(metrics.ELAPSED)),
        "last evaluation": _last_returns(rows, metrics.EVAL_RETURN),
        "last training episodes": _last_returns(rows, metrics.TRAIN_RETURN),
        "departures from the paper": departures,
        "versions": ", ".join(f"{name} {v}" for name, v in config.get("versions", {}).items()),
    }
    return {label: text for label, text in facts.items() if text}


def _last_returns(rows: Rows, name: str) -> str:
    """Return the last return of each seed as text, empty where there is none."""
    series = seed_series(rows, name)
    if not len(series.timestep):
        return ""
    lasts = [values[np.isfinite(values)][-1:] for values in series.values]
    texts = [_number(last[0]) if len(last) else "none" for last in lasts]
    if not series.seeds:
        return texts[0]
    named = zip(series.seeds, texts, strict=True)
    return ", ".join(f"seed {seed}: {text}" for seed, text in named)


def _number(value: float) -> str:
    return f"{value:,.1f}".replace("-", "−")


def _duration(seconds: float | None) -> str:
    if seconds is None:
        return ""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"


def _log_panels(rows: Rows, panels: Sequence[LogPanel], unit: str) -> Iterator[_Panel]:
    logged = set(metric_names(rows))
    for panel in panels:
        names = [
            name for name in panel.names if name in logged and len(seed_series(rows, name).timestep)
        ]
        if names:
            picture = report_pictures.log_picture(rows, panel, names, unit)
            yield _Panel(panel.title, picture, panel.how_to_read)


def _verdicts(diagnostics: Diagnostics) -> list[Verdict]:
    d = diagnostics
    parts = [*d.open_loop, d.rewards, d.continuations, *d.values]
    return [part.verdict for part in parts if part is not None]


def _diagnostic_panels(diagnostics: Diagnostics) -> Iterator[_Panel]:
    for errors in diagnostics.open_loop:
        picture = report_pictures.horizon_picture(errors)
        title = f"Open-loop prediction of {errors.quantity}"
        yield _Panel(title, picture, _READ_HORIZON, errors.verdict)
    if diagnostics.rewards is not None:
        picture = report_pictures.rewards_picture(diagnostics.rewards)
        yield _Panel("Rewards", picture, _READ_REWARDS, diagnostics.rewards.verdict)
    ends = diagnostics.continuations
    if ends is not None:
        picture = report_pictures.continuations_picture(ends)
        yield _Panel("Whether the episode goes on", picture, _READ_CONTINUATIONS, ends.verdict)
    for values in diagnostics.values:
        if len(values.expected):
            picture = report_pictures.values_picture(values)
            title = f"{values.name[:1].upper()}{values.name[1:]} against realised returns"
            yield _Panel(title, picture, _READ_VALUES, values.verdict)


def _animation(env: Environment, episode: Trajectory) -> bytes:
    """Return a small animation of an episode as GIF data."""
    every = math.ceil(int(episode.length) / _FRAMES)
    frames = render_episode(env, episode, every=every, width=_WIDTH, height=_HEIGHT)
    with tempfile.TemporaryDirectory() as directory:
        path = save_animation(frames, Path(directory) / "episode.gif", fps=_FPS)
        return path.read_bytes()


def _text(text: str) -> str:
    return html.escape(str(text))


def _table(facts: Mapping[str, str]) -> str:
    rows = (
        f'<tr><th scope="row">{_text(label)}</th><td>{_text(text)}</td></tr>'
        for label, text in facts.items()
    )
    return "<table>\n" + "\n".join(rows) + "\n</table>"


def _set_up(description: Mapping[str, str]) -> Iterator[str]:
    if description:
        yield "<details>\n<summary>How the agent was set up</summary>"
        yield f"{_table(description)}\n</details>"


def _findings(sections: Sequence[Section]) -> Iterator[str]:
    if sections:
        yield "<h2>Findings</h2>"
    for part in sections:
        if len(sections) > 1:
            yield f"<h3>{_text(part.title)}</h3>"
        items = [_verdict("li", verdict) for verdict in _verdicts(part.diagnostics)]
        yield "<ul>\n" + "\n".join(items) + "\n</ul>"


def _verdict(tag: str, verdict: Verdict) -> str:
    mark = _MARKS[verdict.grade]
    return (
        f'<{tag} class="verdict {verdict.grade.value}">'
        f'<span aria-hidden="true">{mark}</span> {_text(verdict.text)}</{tag}>'
    )


def _grid(panels: Sequence[_Panel], *first: str) -> str:
    return '<div class="grid">\n' + "\n".join([*first, *map(_figure, panels)]) + "\n</div>"


def _figure(panel: _Panel) -> str:
    verdict = "" if panel.verdict is None else _verdict("p", panel.verdict)
    return (
        f"<figure>\n<h3>{_text(panel.title)}</h3>\n"
        f"{_image(panel.picture, 'png', panel.title)}\n<figcaption>{verdict}"
        f'<p class="soft">{_text(panel.how_to_read)}</p></figcaption>\n</figure>'
    )


def _image(data: bytes, kind: str, alt: str, css: str = "") -> str:
    encoded = base64.b64encode(data).decode("ascii")
    style = f' class="{css}"' if css else ""
    return f'<img{style} alt="{_text(alt)}" src="data:image/{kind};base64,{encoded}">'


def _section_html(part: Section, *, is_open: bool) -> str:
    returns = ", ".join(map(_number, part.returns))
    animations = []
    if part.animation is not None:
        picture = _image(part.animation, "gif", "Animation of an episode", "animation")
        animations.append(
            f"<figure>\n<h3>An episode</h3>\n{picture}\n<figcaption>"
            '<p class="soft">The first of the episodes examined.</p></figcaption>\n</figure>'
        )
    panels = list(_diagnostic_panels(part.diagnostics))
    return (
        f"<details{' open' if is_open else ''}>\n<summary>Examined: {_text(part.title)}</summary>\n"
        f'<p class="soft">Returns of its {len(part.returns)} episode(s): {returns}</p>\n'
        f"{_grid(panels, *animations)}\n</details>"
    )

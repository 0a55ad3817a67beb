"""The page about a run: well-formed, self-contained, readable without the agent that made it."""

import base64
import dataclasses
import html
import io
import json
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from PIL import Image

from wm_collect.diagnostics import (
    Continuations,
    Diagnostics,
    HorizonErrors,
    LogPanel,
    RewardPredictions,
    Values,
)
from wm_collect.evaluate import evaluate_policy
from wm_collect.report import Section, run_facts, section, write_report
from wm_collect.run_folder import RunFolder
from wm_collect.testing import CounterEnv

VOID = {"meta", "link", "img", "br"}
BROWSERS = (
    "chromium-headless-shell",
    "chrome-headless-shell",
    "chromium",
    "chromium-browser",
    "google-chrome",
)
PANELS = (
    LogPanel("The losses", ("Loss/a", "Loss/b"), "They should fall."),
    LogPanel("Not logged", ("Loss/unknown",), "Nobody reads this."),
)


class Page(HTMLParser):
    """A parsed page; raises where its elements are not properly nested."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.images: list[dict[str, str]] = []
        self.addresses: list[str] = []
        self.text = ""
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        self.addresses += [values[name] for name in ("src", "href", "srcset") if name in values]
        if tag == "img":
            self.images.append(values)
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data if self.open and self.open[-1] != "style" else ""


def log_rows(seeds: tuple[int, ...] = (), n: int = 6) -> list[dict[str, Any]]:
    rows = []
    for i in range(n):
        values = {"Eval/episodic mean reward": 10.0 * i, "Loss/a": 1 / (i + 1), "Loss/b": -1.0}
        own = {f"{name} (seed {k})": v + k for name, v in values.items() for k in seeds}
        clock = {"tick": i + 1, "timestep": 10 * (i + 1), "Time/elapsed seconds": 70.0 * (i + 1)}
        rows.append(clock | values | own)
    return rows


def run_folder(root: Path, seeds: tuple[int, ...] = (3,)) -> RunFolder:
    settings = {
        "agent": "toy",
        "protocol": "quick",
        "run": {"seed": list(seeds), "n_timesteps": 100},
        "description": {"widths": '3 < 4 & "5"'},
    }
    return RunFolder.create(root, "run", settings=settings)


def diagnostics() -> Diagnostics:
    real = np.linspace(-1, 1, 50)
    return Diagnostics(
        open_loop=(
            HorizonErrors(
                quantity="observations",
                unit="standard deviations",
                model=np.array([0.1, 0.4, np.nan]),
                persistence=np.array([0.3, 0.3, np.nan]),
                n_predictions=np.array([4, 2, 0]),
                relied_on=2,
            ),
        ),
        rewards=RewardPredictions(predicted=0.9 * real, real=real),
        continuations=Continuations(
            probability=np.linspace(0, 1, 50), went_on=real > 0, task_terminates=True
        ),
        values=(
            Values(
                name="critic's value", expected=2 + real, realised=real, tail_share=np.zeros(50)
            ),
        ),
    )


def write(folder: RunFolder, rows: list[dict[str, Any]], sections: list[Section]) -> Page:
    path = write_report(
        folder,
        title='A toy on <task> & "co"',
        facts=run_facts(folder, rows, "env steps", "units 3 (paper: 4)"),
        rows=rows,
        unit="env steps",
        log_panels=PANELS,
        sections=sections,
        note="How it was examined.",
    )
    assert path == folder.report
    return Page(path.read_text(encoding="utf-8"))


@pytest.fixture
def full(tmp_path: Path) -> Page:
    """A page with everything in it."""
    env = CounterEnv((5,))

    def policy(carry: Any, obs: jax.Array, is_first: jax.Array, key: jax.Array) -> Any:
        return jnp.zeros((obs.shape[0], 2)), carry, None

    run = jax.jit(lambda key: evaluate_policy(env, policy, None, 1, key, record=True).trajectory)
    part = section("seed 3", env, [jax.device_get(run(jax.random.key(0)))], diagnostics())
    other = dataclasses.replace(part, title="seed 4", animation=None)
    return write(run_folder(tmp_path, (3, 4)), log_rows((3, 4)), [part, other])


def test_every_image_is_part_of_the_page_and_decodes(full: Page) -> None:
    for image in full.images:
        kind, _, data = image["src"].partition(";base64,")
        with Image.open(io.BytesIO(base64.b64decode(data, validate=True))) as picture:
            picture.load()
            assert f"data:image/{(picture.format or '').lower()}" == kind
            assert min(picture.size) > 200
    titles = [html.unescape(image["alt"]) for image in full.images]
    assert titles[:2] == ["Returns", "The losses"]
    assert titles.count("Animation of an episode") == 1
    assert titles.count("Critic's value against realised returns") == 2
    assert "Not logged" not in titles


def test_nothing_is_loaded_from_elsewhere(full: Page) -> None:
    assert full.addresses and all(address.startswith("data:") for address in full.addresses)


def test_the_text_says_what_was_found(full: Page) -> None:
    for sentence in (
        'A toy on <task> & "co"',
        "How it was examined.",
        "60 env steps of 100: the run is not finished",
        "seed 3: 53.0, seed 4: 54.0",
        "7 min 0 s",
        "units 3 (paper: 4)",
        '3 < 4 & "5"',
        "The model's observations beat persistence up to 1 step(s); the agent looks 2",
        "explain 99 % of the rewards' variance",
        "They should fall.",
    ):
        assert sentence in full.text, sentence
    findings = full.text.partition("Findings")[2].partition("What the log says")[0]
    assert re.sub(r"\s+", " ", findings).count("too high, by 2 on average") == 2
    assert findings.index("seed 3") < findings.index("seed 4")
    assert re.search(r"Returns of its 1 episode\(s\): [\d,]+\.\d", full.text)


@pytest.mark.parametrize("rows", [[], log_rows(n=1)], ids=["empty", "one row"])
def test_a_run_that_has_only_begun_is_reported_too(tmp_path: Path, rows: list[Any]) -> None:
    page = write(run_folder(tmp_path), rows, [])
    assert "Findings" not in page.text and "Examined:" not in page.text
    assert f"{10 * len(rows)} env steps of 100" in page.text


def test_a_browser_shows_every_image_without_an_error(full: Page, tmp_path: Path) -> None:
    found = [path for path in map(shutil.which, BROWSERS) if path]
    if not found:
        pytest.skip(f"no browser is installed; looked for {', '.join(BROWSERS)}")
    # The copy tells about itself in its title, which the browser prints with the page.
    script = """<script>
      const errors = [];
      addEventListener("error", e => errors.push(String(e.message || e.target.src)), true);
      addEventListener("load", () => { document.title = JSON.stringify({
        title: document.title, errors, widths: [...document.images].map(i => i.naturalWidth),
        overflow: document.documentElement.scrollWidth - innerWidth }); });
    </script></head>"""
    page = (tmp_path / "run" / "report.html").read_text(encoding="utf-8")
    copy = tmp_path / "copy.html"
    copy.write_text(page.replace("</head>", script, 1), encoding="utf-8")
    shown = subprocess.run(
        [
            found[0],
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--window-size=390,800",
            f"--user-data-dir={tmp_path / 'profile'}",
            "--dump-dom",
            copy.as_uri(),
        ],
        capture_output=True,
        text=True,
        timeout=60,
    )
    match = re.search(r"<title>(.*?)</title>", shown.stdout, flags=re.DOTALL)
    assert match, shown.stderr
    seen = json.loads(html.unescape(match[1]))
    assert seen["title"] == 'A toy on <task> & "co"'
    assert seen["errors"] == [] and "CONSOLE" not in shown.stderr
    assert len(seen["widths"]) == len(full.images) and min(seen["widths"]) > 200
    assert seen["overflow"] <= 0, "a phone has to scroll sideways"

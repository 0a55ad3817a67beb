"""The folder of one run: resolved settings, log, checkpoints, pictures."""

import datetime
import json
import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from wm_collect.sinks import Number, read_rows
from wm_collect.versions import installed_versions

_CONFIG = "config.json"


class RunFolder:
    """Paths and settings of one run.

    Made by `create` or `open`. The folder holds

    - `config.json`: what the run was started with, see `config`;
    - `metrics.jsonl`, `metrics.csv`: the log rows;
    - `checkpoints/`: see `wm_collect.checkpoint`;
    - `learning_curve.png`, `evaluation.gif`: pictures;
    - `open_loop.png`: predictions over the truth, of an agent whose model makes them;
    - `report.html`: what the command `report` wrote.

    Attributes:
        path: the folder, absolute.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def create(
        cls,
        root: str | os.PathLike[str] = "runs",
        name: str | None = None,
        *,
        settings: Mapping[str, Any],
        env_id: str = "env",
        agent: str = "agent",
    ) -> "RunFolder":
        """Make the folder of a new run and write its `config.json`.

        Args:
            root: folder of all runs.
            name: folder of this run; None makes `<env>-<agent>-<date-time>`, made unique.
            settings: resolved settings, plain values for JSON, seeds included.
            env_id: environment, for the default name.
            agent: agent, for the default name.

        Raises:
            FileExistsError: `name` is given and such a folder exists.
            ValueError: `name` is not a plain folder name.
            TypeError: the settings are not plain values.
            OSError: the folder cannot be made.
        """
        text = _config_text(settings)
        if name is not None:
            if name in ("", ".", "..") or Path(name).name != name:
                raise ValueError(f"a run's name must be a plain folder name, got {name!r}")
            path = Path(root).absolute() / name
            try:
                path.mkdir(parents=True)
            except FileExistsError:
                raise FileExistsError(
                    f"the run folder {path} exists: choose another name, "
                    "resume that run, or delete the folder first"
                ) from None
        else:
            path = _make_unique(Path(root).absolute(), env_id, agent)
        (path / _CONFIG).write_text(text, encoding="utf-8")
        return cls(path)

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> "RunFolder":
        """Open the folder of an earlier run.

        Raises:
            FileNotFoundError: there is no such folder, or it lacks what a run has; the message
            lists that. ValueError: its `config.json` is damaged.
        """
        folder = cls(Path(path).absolute())
        if not folder.path.is_dir():
            raise FileNotFoundError(f"there is no run folder {folder.path}")
        missing = [
            p.name
            for p in (folder.config_path, folder.metrics_jsonl, folder.checkpoints)
            if not p.exists()
        ]
        if _CONFIG in missing:
            raise FileNotFoundError(
                f"{folder.path} is not a run folder: it lacks {', '.join(missing)}; "
                "give the folder that train made, which holds config.json"
            )
        _ = folder.config
        return folder

    @property
    def config(self) -> dict[str, Any]:
        """Return `config.json`: `settings`, `command`, `versions` of packages, `resumed` if it was.

        Raises:
            ValueError: the file is damaged.
        """
        try:
            config = json.loads(self.config_path.read_text(encoding="utf-8"))
            config["settings"]
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f"{self.config_path} is not a run's configuration: {error}") from error
        return config

    def record_resume(self, timestep: int, n_timesteps: int) -> None:
        """Add to `config.json` that the run goes on: from where to where, by which versions.

        Args:
            timestep: how far the run was.
            n_timesteps: where it is to end; kept as the run's setting.
        """
        config = self.config
        config["settings"]["run"]["n_timesteps"] = n_timesteps
        resumed = {"timestep": timestep, "n_timesteps": n_timesteps, **_provenance()}
        config["resumed"] = [*config.get("resumed", []), resumed]
        new = self.config_path.with_suffix(".new")
        new.write_text(json.dumps(config, indent=2, sort_keys=True) + "\n", encoding="utf-8")
        os.replace(new, self.config_path)

    @property
    def settings(self) -> dict[str, Any]:
        """Return the resolved settings given to `create`."""
        return self.config["settings"]

    def log_rows(self) -> list[dict[str, Number]]:
        """Return the log rows, see `wm_collect.sinks.read_rows`; none before the first.

        Raises:
            ValueError: the log is damaged.
        """
        return read_rows(self.metrics_jsonl) if self.metrics_jsonl.exists() else []

    @property
    def config_path(self) -> Path:
        """Return the path of the settings."""
        return self.path / _CONFIG

    @property
    def metrics_jsonl(self) -> Path:
        """Return the path of the log as JSON lines."""
        return self.path / "metrics.jsonl"

    @property
    def metrics_csv(self) -> Path:
        """Return the path of the log as a table."""
        return self.path / "metrics.csv"

    @property
    def checkpoints(self) -> Path:
        """Return the folder of the checkpoints."""
        return self.path / "checkpoints"

    @property
    def learning_curve(self) -> Path:
        """Return the path of the learning-curve picture."""
        return self.path / "learning_curve.png"

    @property
    def evaluation_gif(self) -> Path:
        """Return the path of the evaluation's animation."""
        return self.path / "evaluation.gif"

    @property
    def open_loop(self) -> Path:
        """Return the path of the picture of open-loop predictions."""
        return self.path / "open_loop.png"

    @property
    def report(self) -> Path:
        """Return the path of the page about the run."""
        return self.path / "report.html"


def _config_text(settings: Mapping[str, Any]) -> str:
    config = {"settings": dict(settings), **_provenance()}
    try:
        return json.dumps(config, indent=2, sort_keys=True) + "\n"
    except (TypeError, ValueError) as error:
        raise TypeError(f"a run's settings must be plain values for JSON: {error}") from error


def _provenance() -> dict[str, Any]:
    """Return by which command and which versions something is done."""
    return {
        "command": [Path(sys.argv[0]).name, *sys.argv[1:]],
        "versions": installed_versions(),
    }


def _make_unique(root: Path, env_id: str, agent: str) -> Path:
    now = datetime.datetime.now().strftime("%Y%m%d-%H%M%S")
    base = re.sub(r"[^A-Za-z0-9_.-]+", "_", f"{env_id}-{agent}-{now}")
    number = 1
    while True:
        path = root / (base if number == 1 else f"{base}-{number}")
        try:
            path.mkdir(parents=True)
            return path
        except FileExistsError:
            if not path.is_dir():
                raise
            number += 1

"""The command `export`, whatever the agent: write a run's policy, then load it and time it."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax

from wm_collect.agent import Trainer
from wm_collect.cli_options import Export
from wm_collect.cli_runs import per_seed, relative, restore
from wm_collect.compile_cache import enable_compile_cache
from wm_collect.deploy import export_policy, load_policy
from wm_collect.deploy.export import check_can_export
from wm_collect.quiet import quiet_xla
from wm_collect.run_folder import RunFolder

_WHAT = {
    "contract.json": "what goes in and out, where it comes from, digests",
    "policy.stablehlo": "the program of one decision",
    "weights.npz": "the weights",
    "README.md": "how to run it with JAX and NumPy alone",
}


def export_run(
    trainer: Trainer, folder: RunFolder, parsed: Export, options: Mapping[str, Any]
) -> None:
    """Write the policy of one seed of a run, and print what was written and how fast it decides.

    Args:
        trainer: the run's agent.
        folder: the run folder.
        parsed: what was asked for.
        options: keyword arguments of the agent's `deployable`.

    Raises:
        ValueError: the seed has to be named or was not trained, or an option does not fit.
        FileExistsError: the folder to write exists.
        CheckpointError: the checkpoint cannot be read.
    """
    seeds = folder.settings["run"]["seed"]
    seed = _chosen_seed(seeds, parsed.training_seed)
    out = (parsed.out or folder.path / "policy").absolute()
    check_can_export(out)
    state, metadata = restore(trainer, folder, best=parsed.best, fallback=parsed.fallback)
    provenance = {
        "run": folder.path.name,
        "training_seed": seed,
        "timestep": metadata["timestep"],
        "timestep_unit": trainer.clock.unit,
        "best_checkpoint": parsed.best,
        "trained_with": folder.config["versions"],
    }
    written = export_policy(
        trainer,
        next(one for trained, one in per_seed(seeds, state) if trained == seed),
        out,
        provenance=provenance,
        **options,
    )
    print(
        f"{trainer.name} on {trainer.subject} after {metadata['timestep']:,} {trainer.clock.unit}, "
        f"training seed {seed}: {relative(written)}"
    )
    for name, what in _WHAT.items():
        print(f"  {name:<18}{(written / name).stat().st_size:>12,} bytes  {what}")
    _print_rate(written)


def _chosen_seed(seeds: list[int], asked: int | None) -> int:
    known = ", ".join(map(str, seeds))
    if asked is None:
        if len(seeds) > 1:
            raise ValueError(
                f"the run trained the seeds {known} side by side: choose one with --training-seed."
            )
        return seeds[0]
    if asked not in seeds:
        raise ValueError(f"--training-seed must be one of {known}, got {asked}.")
    return asked


def _print_rate(written: Path) -> None:
    """Load the policy and print how long one decision takes, for one environment."""
    enable_compile_cache()
    with quiet_xla():
        rate = load_policy(written).rate()
    device = jax.devices()[0].device_kind
    print(f"One decision takes {1000 / rate:.3g} ms: {rate:,.0f} Hz on this {device}.")

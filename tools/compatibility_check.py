"""Does an installed package work? Run by `compatibility.py`, inside the environment under test.

    python -I compatibility_check.py wm-dreamer

Run in an empty folder, it imports everything of ours that is installed, computes numbers that are
known, and uses the package as its user would: tiny runs that are trained, resumed and exported. It
needs what the package itself needs, and ends with an exception if something does not work.
"""

import importlib
import importlib.util
import pkgutil
import sys
from collections.abc import Callable
from pathlib import Path

import jax
import numpy as np

OURS = ("wm_numerics", "wm_collect", "wm_dreamer", "wm_tdmpc2", "wm_multitask")
N_TIMESTEPS, N_TIMESTEPS_RESUMED = 24, 36

# The smallest networks, on episodes of six steps: what takes time is compiling.
EPISODES = ["--episode-length=6", "--num-episode-test=1"]
TDMPC2 = (
    "--enc-dim=8 --mlp-dim=8 --latent-dim=8 --num-q=2 --horizon=1 --batch-size=4 "
    "--num-samples=8 --num-elites=4 --num-pi-trajs=2 --iterations=1"
).split()
DREAMER = (
    "--n-envs=2 --units=8 --hidden=8 --deter=8 --stoch=2 --classes=2 --blocks=2 --batch-size=4 "
    "--batch-length=4 --imag-horizon=2 --train-ratio=8"
).split()

Command = Callable[[list[str]], int]


def import_all() -> None:
    """Import every module of ours that is installed, and look up every public name."""
    without_flax = importlib.util.find_spec("flax") is None
    for name in filter(importlib.util.find_spec, OURS):
        package = importlib.import_module(name)
        for public in package.__all__:
            getattr(package, public)
        for module in pkgutil.walk_packages(package.__path__, f"{name}."):
            try:
                importlib.import_module(module.name)
            except ImportError as error:
                # wm-numerics is useful without flax; its modules that need it say so.
                if not (without_flax and "wm-numerics[nn]" in str(error)):
                    raise


def check_numerics() -> None:
    """Compare the shared numerics with numbers that are known."""
    from wm_numerics import TwoHot, symexp, symlog

    np.testing.assert_allclose(symlog(np.float32(np.e - 1)), 1.0, rtol=1e-6)
    np.testing.assert_allclose(symexp(symlog(np.float32(-42.0))), -42.0, rtol=1e-5)
    for two_hot in (TwoHot.tdmpc2(), TwoHot.dreamerv3()):
        decoded = jax.jit(lambda x, coding=two_hot: coding.decode(coding.encode(x)))
        np.testing.assert_allclose(decoded(np.float32(3.7)), 3.7, rtol=1e-4)


def check_collect() -> None:
    """Make the doctor's checks; collect rows, save and restore them."""
    from wm_collect import Checkpoints
    from wm_collect.doctor import run_checks
    from wm_collect.testing import CounterEnv, check_rows, collect_rows

    failed = [check for check in run_checks() if check.result == "failed"]
    if failed:
        raise AssertionError("; ".join(f"{check.name}: {check.detail}" for check in failed))

    env = CounterEnv([5, 3], terminates=[False, True])
    rows = collect_rows(env, n_envs=2, n_ticks=30, key=jax.random.key(0))
    check_rows(rows, env.spec)

    checkpoints = Checkpoints("rows")
    checkpoints.save(30, rows, {})
    restored, _ = checkpoints.restore(jax.tree.map(np.zeros_like, rows))
    jax.tree.map(np.testing.assert_array_equal, restored, rows)


def check_tdmpc2() -> None:
    """Train, resume and export TD-MPC2."""
    from wm_tdmpc2.cli import run

    check_agent(run, ["--seed-steps=8", *TDMPC2])


def check_dreamer() -> None:
    """Train, resume and export DreamerV3."""
    from wm_dreamer.cli import run

    check_agent(run, DREAMER)


def check_multitask() -> None:
    """Learn from the episodes of a single-task run, resume and export."""
    from wm_multitask.cli import run
    from wm_tdmpc2.cli import run as run_single

    single = [*EPISODES, *TDMPC2, "--seed-steps=8", f"--n-timesteps={N_TIMESTEPS}"]
    succeed(run_single, "train", "Pendulum-v1", *single, "--name=single", "--no-animation")
    succeed(run, "export", "runs/single", "single.npz")
    succeed(run, "pool", "single.npz", "--out=dataset.npz")
    options = [*TDMPC2, "--task-dim=4", "--num-episode-test=1", "--n-timesteps=4", "--name=tiny"]
    succeed(run, "train", "dataset.npz", *options)
    check_log(n_timesteps=4)
    succeed(run, "resume", "runs/tiny", "--n-timesteps=6")
    check_log(n_timesteps=6)
    succeed(run, "export-policy", "runs/tiny", "--task=Pendulum-v1", "--out=policy")
    check_policy()


def check_agent(run: Command, sizes: list[str]) -> None:
    """Use the commands of a single-task agent, which draw pictures as well."""
    options = [*EPISODES, *sizes, f"--n-timesteps={N_TIMESTEPS}", "--name=tiny"]
    succeed(run, "train", "Pendulum-v1", *options)
    check_log(N_TIMESTEPS)
    succeed(run, "resume", "runs/tiny", f"--n-timesteps={N_TIMESTEPS_RESUMED}")
    check_log(N_TIMESTEPS_RESUMED)
    succeed(run, "report", "runs/tiny", "--episodes=1")
    succeed(run, "export", "runs/tiny", "--out=policy")
    check_policy()


def succeed(run: Command, *args: str) -> None:
    """Give a command these arguments; it must end with status 0."""
    status = run(list(args))
    if status != 0:
        raise AssertionError(f"{' '.join(args)} ended with status {status}")


def check_log(n_timesteps: int) -> None:
    """The run has come so far, has learnt, and every number in its last row is finite."""
    from wm_collect import read_rows

    last = read_rows(Path("runs/tiny/metrics.jsonl"))[-1]
    if last["timestep"] != n_timesteps or not last["Train/n_updates"] > 0:
        raise AssertionError(f"after training {n_timesteps} timesteps the log ends with {last}")
    if not np.isfinite(last["Eval/episodic mean reward"]):
        raise AssertionError(f"the evaluation is not finite: {last}")


def check_policy() -> None:
    """The exported policy acts within the bounds of its task."""
    from wm_collect import load_policy

    policy = load_policy("policy")
    policy.reset(n=1, seed=0)
    for _ in range(2):
        action = policy(np.array([1.0, 0.0, 0.3], np.float32))
        if action.shape != (1,) or not np.abs(action) <= 2:  # the torque of a pendulum
            raise AssertionError(f"the exported policy gives the action {action}")


CHECKS: dict[str, list[Callable[[], None]]] = {
    "wm-numerics": [check_numerics],
    "wm-collect": [check_numerics, check_collect],
    "wm-tdmpc2": [check_numerics, check_tdmpc2],
    "wm-dreamer": [check_numerics, check_dreamer],
    "wm-multitask": [check_numerics, check_multitask],
}
"""What is checked of each package, after its imports; what is below it has its own line."""


def main() -> None:
    """Check the package that is named on the command line."""
    (package,) = sys.argv[1:]
    import_all()
    for check in CHECKS[package]:
        check()
    print(f"{package} works")


if __name__ == "__main__":
    main()

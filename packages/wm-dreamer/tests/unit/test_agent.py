"""`DreamerV3`: what its constructor and `train` refuse, and what it says about itself."""

import dataclasses
import inspect
import sys

import jax
import numpy as np
import pytest

from wm_collect import forecast
from wm_collect.testing import CounterEnv
from wm_dreamer import DreamerV3, DreamerV3Settings, Schedule

# Environments written by others promote ranks.
pytestmark = pytest.mark.rank_promotion

SMALL = dict(units=16, deter=32, hidden=16, stoch=4, classes=4, blocks=4, bins=41)


class WithPhase:
    """An extension with one method."""

    def __init__(self, phase):
        setattr(self, phase, lambda *_: None)


FORBIDDEN = ["on_target", "critic_loss", "actor_loss", "action", "eval_action"]

REFUSED = {
    "a repeat that does not divide": (
        dict(env_id="Pendulum-v1", action_repeat=3),
        r"200 simulator steps is not a multiple of action_repeat=3; choose .* 198 or 201",
    ),
    "an unknown size": (
        dict(env_id="Pendulum-v1", model_size="13m"),
        r"model_size must be one of 1m, 12m, .* got '13m'",
    ),
    "blocks that do not divide": (
        dict(env_id="Pendulum-v1", model_size="1m", blocks=3),
        r"deter must be a multiple of blocks=3, got 512",
    ),
    "a replay smaller than a first batch": (
        dict(env_id="CartPole-v1", replay_capacity=1039),
        r"replay_capacity must hold the rows of a first batch, 65 .* x 16 .* = 1040, got 1039",
    ),
    "a ratio of too many digits": (
        dict(env_id="CartPole-v1", train_ratio=31.4159265358979),
        r"train_ratio=31\.4159265358979 with 16 environment\(s\) .* fewer digits",
    ),
    "a misspelt id": (
        dict(env_id="CartPol-v1"),
        r"Unknown environment id 'CartPol-v1'. Close matches: 'CartPole-v1' \(gymnax\)",
    ),
    "the id of another library": (
        dict(env_id="cheetah-run"),
        r"Unknown environment id 'cheetah-run'. Close matches: 'CheetahRun' \(playground",
    ),
    "an unknown parameter": (
        dict(env_id="Pendulum-v1", env_params={"gravity": 1.0}),
        r"env_params names \['gravity'\], which the parameters of 'Pendulum-v1' do not have",
    ),
    "an extension without a phase": (
        dict(env_id="Pendulum-v1", extensions=(WithPhase("post_updates"),)),
        r"WithPhase implements no known phase, .* runs init_state, pretrain, post_update, eval_me",
    ),
} | {
    f"an extension with {phase}": (
        dict(env_id="Pendulum-v1", extensions=(WithPhase(phase),)),
        rf"WithPhase implements {phase}, which DreamerV3 does not run",
    )
    for phase in FORBIDDEN
}


@pytest.mark.parametrize(("arguments", "message"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_work_is_refused_at_construction_with_a_sentence(arguments, message):
    with pytest.raises(ValueError, match=message):
        DreamerV3(**arguments)


@pytest.mark.parametrize(
    ("env_id", "module", "extra"),
    [
        ("hopper", "brax", r"wm-collect\[brax\]"),
        ("CartpoleBalance", "mujoco_playground", r"wm-collect\[playground\]"),
    ],
)
def test_a_library_that_is_missing_is_named_with_the_way_to_install_it(
    env_id, module, extra, monkeypatch
):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ModuleNotFoundError, match=rf'pip install "{extra}"'):
        DreamerV3(env_id)


def test_a_single_extension_is_refused_with_the_way_to_write_it():
    with pytest.raises(TypeError, match=r"write extensions=\(my_extension,\)"):
        DreamerV3("Pendulum-v1", extensions=WithPhase("post_update"))


def test_a_misspelt_argument_is_refused():
    with pytest.raises(TypeError, match="episode_lenght"):
        DreamerV3("Pendulum-v1", episode_lenght=100)


@pytest.fixture(scope="module")
def agent():
    return DreamerV3(CounterEnv([50]), model_size="1m")


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (dict(seed=-1), ValueError, r"a seed must lie between 0 and 4294967295, got -1"),
        (dict(seed=2**32), ValueError, r"a seed must lie between 0 and 4294967295"),
        (dict(seed=[3, 3]), ValueError, r"every seed of a list must differ, got \[3, 3\]"),
        (dict(seed=[]), ValueError, r"the list of seeds is empty"),
        (dict(seed=0.5), TypeError, r"a seed must be an integer or a list of integers, got 0\.5"),
        (dict(n_timesteps=0), ValueError, r"n_timesteps must be a whole number .* got 0"),
        (dict(n_timesteps=-5), ValueError, r"n_timesteps must be a whole number .* got -5"),
        (dict(n_timesteps=1e3), ValueError, r"n_timesteps must be a whole number .* got 1000\.0"),
        (dict(n_timesteps=True), ValueError, r"n_timesteps must be a whole number .* got True"),
        (dict(num_episode_test=-1), ValueError, r"num_episode_test must be at least 0, got -1"),
    ],
)
def test_training_refuses_bad_arguments_with_a_sentence(agent, arguments, error, message):
    with pytest.raises(error, match=message):
        agent.train(**{"seed": 0, "n_timesteps": 100, "progress": False, **arguments})


def test_a_run_to_go_on_with_must_fit_as_a_whole(agent, monkeypatch):
    monkeypatch.setattr(forecast, "device_memory", lambda: (10**9, "small"))
    agent.check_run(0, 10_000, 0)
    with pytest.raises(ValueError, match=r"cannot fit: .* but the device \(small\) has 1.0 GB"):
        agent.check_run(0, 10_000, 0, done=1_000_000)


def test_the_constructor_takes_every_setting_with_its_default():
    """In the order of the settings; then what belongs to the agent alone."""
    parameters = list(inspect.signature(DreamerV3.__init__).parameters.values())[1:]
    assert parameters[0].name == "env_id" and parameters[0].default is inspect.Parameter.empty
    fields = dataclasses.fields(DreamerV3Settings)
    ours = parameters[1 : 1 + len(fields)]
    assert [p.name for p in ours] == [f.name for f in fields]
    assert [p.default for p in ours] == [f.default for f in fields]
    assert [p.annotation for p in ours] == [f.type for f in fields]
    rest = [p.name for p in parameters[1 + len(fields) :]]
    assert rest == ["env_params", "terminates", "extensions"]


def test_every_setting_reaches_the_configuration():
    changed = dict(
        n_envs=3, model_size="1m", units=24, lam=0.7, actent=1e-3, train_ratio=33, repval_scale=0.0
    )
    agent = DreamerV3(CounterEnv([50, 20], terminates=[True], obs_dim=4, action_dim=3), **changed)
    assert {name: getattr(agent.config, name) for name in changed} == changed
    assert agent.settings == DreamerV3Settings(**changed)
    assert (agent.config.obs_dim, agent.config.action_dim) == (4, 3)
    assert (agent.config.deter, agent.config.hidden, agent.config.classes) == (512, 64, 4)
    assert agent.config.agent_episode_length == 50 and agent.config.terminates
    assert agent.schedule == Schedule.of(agent.config)


@pytest.mark.parametrize(
    ("env_id", "discrete", "terminates"),
    [("CartPole-v1", True, True), ("Pendulum-v1", False, False)],
)
def test_discrete_and_continuous_tasks_of_any_length_are_taken(env_id, discrete, terminates):
    config = DreamerV3(env_id, model_size="1m").config
    assert (config.discrete, config.terminates) == (discrete, terminates)


def test_rows_and_frames_count_resets():
    agent = DreamerV3("Pendulum-v1", model_size="1m", action_repeat=2)
    assert agent.config.agent_episode_length == 100
    # 16 environments; a row is a tick of one of them, and two simulator steps.
    assert agent.clock.timestep(101) == 1616
    assert agent.clock.env_frames(101) == 3232
    assert agent.clock.unit == "rows"


# Totals at the seven sizes, of two-hot heads with 255 outputs.
TOTALS = {
    "walker": (640_867, 9_738_019, 21_782_947, 38_612_003, 86_622_499, 153_769_507, 345_473_059),
    "CartPole": (637_381, 9_724_165),
    "Pendulum": (637_188, 9_723_396),
}
TASKS = {
    "walker": dict(obs_dim=24, action_dim=6),
    "CartPole": dict(obs_dim=4, action_dim=2, discrete=True),
    "Pendulum": dict(obs_dim=3, action_dim=1),
}


@pytest.mark.parametrize("task", TASKS)
def test_parameter_counts_of_common_tasks(task):
    env = CounterEnv([500], **TASKS[task])
    sizes = ("1m", "12m", "25m", "50m", "100m", "200m", "400m")[: len(TOTALS[task])]
    counts = [DreamerV3(env, model_size=size).parameter_counts() for size in sizes]
    assert tuple(count["total"] for count in counts) == TOTALS[task]
    for count in counts:
        assert sum(count.values()) == 2 * count["total"]


def test_parameter_counts_are_those_of_the_state():
    agent = DreamerV3(CounterEnv([50]), **SMALL)
    params = agent.state_like(0, 100).agent.learner.params
    counts = {name: sum(x.size for x in jax.tree.leaves(tree)) for name, tree in params.items()}
    assert agent.parameter_counts() == counts | {"total": sum(counts.values())}


@pytest.mark.parametrize("n_timesteps", [1, 1_000, 2_000_000])
@pytest.mark.parametrize("discrete", [False, True])
@pytest.mark.parametrize("classes", [4, 300])
def test_the_replay_s_bytes_are_those_of_the_state_s_arrays(n_timesteps, discrete, classes):
    env = CounterEnv([50], discrete=discrete, action_dim=5)
    agent = DreamerV3(env, **SMALL | {"classes": classes, "replay_capacity": 100_000})
    replay = agent.state_like(0, n_timesteps).agent.replay
    actual = sum(leaf.size * np.dtype(leaf.dtype).itemsize for leaf in jax.tree.leaves(replay))
    assert agent.replay_bytes_per_seed(n_timesteps) == actual


def test_a_row_of_the_paper_s_walker_takes_the_bytes_stated():
    agent = DreamerV3(CounterEnv([500], obs_dim=24, action_dim=6))
    # And 4 bytes that count the online windows.
    assert agent.replay_bytes_per_seed(160_000) == 160_000 * 8_351 + 4


def test_the_description_names_what_matters_before_a_run():
    text = " ".join(DreamerV3("Pendulum-v1").describe().values())
    for part in (
        "Pendulum-v1",
        "9,723,396",
        "2048 in 8 blocks",
        "32 latents of 16 classes",
        "0.996997",
        "always 200 agent steps",
        "reset together",
        "first update after 1,040 rows, then 1/2 update(s) per row",
        "batches of 16 x 64 rows",
        "imagination 15 steps",
    ):
        assert part in text
    discrete = " ".join(DreamerV3("CartPole-v1", model_size="1m").describe().values())
    assert "2 discrete actions" in discrete
    assert "up to 500 agent steps" in discrete and "reset whenever one ends" in discrete


def test_a_protocol_sets_defaults_and_its_changes_are_named():
    agent = DreamerV3.from_protocol("quick", "CartPole-v1", batch_size=8)
    quick = DreamerV3.protocols["quick"].settings
    assert all(getattr(agent.settings, name) == value for name, value in quick.items())
    lines = agent.describe_departures()
    assert "batch_size 8 (paper: " in lines["departures"]
    assert lines["of these, not of quick"].startswith("batch_size 8 (quick: ")
    assert DreamerV3("CartPole-v1").describe_departures() == {
        "departures": "none: the paper's hyperparameters"
    }
    with pytest.raises(
        ValueError, match="the protocol must be one of paper, dmc-proprio-paper, quick"
    ):
        DreamerV3.from_protocol("fast", "CartPole-v1")


def test_a_run_that_cannot_fit_is_refused_before_any_work():
    with pytest.raises(ValueError, match=r"this run cannot fit: it needs about .* Use a"):
        DreamerV3("CartPole-v1", model_size="400m").train(
            seed=range(400), n_timesteps=1_000_000, progress=False
        )

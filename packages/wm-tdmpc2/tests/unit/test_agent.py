"""`TDMPC2`: what its constructor and `train` refuse, and what it says about itself."""

import dataclasses
import inspect

import pytest

from wm_collect.testing import CounterEnv
from wm_tdmpc2 import TDMPC2, TDMPC2Settings, schedule_of

# Environments written by others promote ranks.
pytestmark = pytest.mark.rank_promotion


class WithPhase:
    """An extension with one method."""

    def __init__(self, phase):
        setattr(self, phase, lambda *_: None)


FORBIDDEN = ["on_target", "critic_loss", "actor_loss", "action", "eval_action"]

REFUSED = {
    "discrete actions": (
        dict(env_id="CartPole-v1"),
        r"plans over continuous actions, but CartPole-v1 has 2 discrete .* use DreamerV3",
    ),
    "a task that terminates": (
        dict(env_id="MountainCarContinuous-v0"),
        r"fixed length, but MountainCarContinuous-v0 may terminate early; set episodic=True",
    ),
    "a custom task that terminates": (
        dict(env_id=CounterEnv([4, 9], terminates=[True, False])),
        r"fixed length, but counter may terminate early",
    ),
    "a task declared to terminate": (
        dict(env_id="Pendulum-v1", terminates=True),
        r"fixed length, but Pendulum-v1 may terminate early",
    ),
    "a repeat that does not divide": (
        dict(env_id="Pendulum-v1", action_repeat=3),
        r"200 simulator steps is not a multiple of action_repeat=3; choose .* 198 or 201",
    ),
    "a buffer smaller than an episode": (
        dict(env_id="Pendulum-v1", buffer_size=199),
        r"buffer_size must hold at least one episode .* = 200, got 199",
    ),
    "a buffer smaller than a round": (
        dict(env_id="Pendulum-v1", n_envs=8, buffer_size=1000),
        r"200 steps x 8 environment\(s\) = 1600, got 1000",
    ),
    "a horizon longer than an episode": (
        dict(env_id="Pendulum-v1", horizon=201),
        r"horizon must be at most the episode length of 200 agent steps, got 201",
    ),
    "a horizon longer than a repeated episode": (
        dict(env_id="Pendulum-v1", horizon=101, action_repeat=2),
        r"horizon must be at most the episode length of 100 agent steps, got 101",
    ),
    "more elites than candidates": (
        dict(env_id="Pendulum-v1", num_elites=65, num_samples=64),
        r"num_elites must be between 1 and num_samples=64, got 65",
    ),
    "an unknown size": (
        dict(env_id="Pendulum-v1", model_size=2),
        r"model_size must be one of 1, 5, 19, 48, 317, got 2",
    ),
    "a misspelt id": (
        dict(env_id="Pendulm-v1"),
        r"Unknown environment id 'Pendulm-v1'. Close matches: 'Pendulum-v1' \(gymnax\)",
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
        rf"WithPhase implements {phase}, which TD-MPC2 does not run",
    )
    for phase in FORBIDDEN
}


@pytest.mark.parametrize(("arguments", "message"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_work_is_refused_at_construction_with_a_sentence(arguments, message):
    with pytest.raises(ValueError, match=message):
        TDMPC2(**arguments)


def test_a_single_extension_is_refused_with_the_way_to_write_it():
    with pytest.raises(TypeError, match=r"write extensions=\(my_extension,\)"):
        TDMPC2("Pendulum-v1", extensions=WithPhase("post_update"))


def test_a_misspelt_argument_is_refused():
    with pytest.raises(TypeError, match="episode_lenght"):
        TDMPC2("Pendulum-v1", episode_lenght=100)


@pytest.fixture(scope="module")
def agent():
    return TDMPC2(CounterEnv([50]), model_size=1)


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
        (dict(num_episode_test=-1), ValueError, r"num_episode_test must be at least 0, got -1"),
    ],
)
def test_training_refuses_bad_arguments_with_a_sentence(agent, arguments, error, message):
    with pytest.raises(error, match=message):
        agent.train(**{"seed": 0, "n_timesteps": 100, "progress": False, **arguments})


def test_the_constructor_takes_every_setting_with_its_default():
    """First the settings, then what belongs to the agent alone."""
    parameters = list(inspect.signature(TDMPC2.__init__).parameters.values())[1:]
    assert parameters[0].name == "env_id" and parameters[0].default is inspect.Parameter.empty
    fields = dataclasses.fields(TDMPC2Settings)
    ours = parameters[1 : 1 + len(fields)]
    assert {p.name: (p.default, p.annotation) for p in ours} == {
        f.name: (f.default, f.type) for f in fields
    }
    rest = [p.name for p in parameters[1 + len(fields) :]]
    assert rest == ["env_params", "terminates", "extensions"]


def test_every_setting_reaches_the_configuration():
    changed = dict(n_envs=2, model_size=1, rho=0.7, num_samples=60, num_elites=9, seed_steps=11)
    agent = TDMPC2(CounterEnv([50], obs_dim=4, action_dim=3), **changed)
    assert {name: getattr(agent.config, name) for name in changed} == changed
    assert agent.settings == TDMPC2Settings(**changed)
    assert (agent.config.obs_dim, agent.config.action_dim) == (4, 3)
    assert agent.config.agent_episode_length == 50
    assert agent.schedule == schedule_of(agent.config)


def test_action_repeat_counts_in_agent_steps_and_frames():
    agent = TDMPC2("Pendulum-v1", model_size=1, action_repeat=2)
    assert agent.config.agent_episode_length == 100 and agent.config.gamma == 0.95
    # One environment, episodes of 100: tick 101 is the first of the second episode.
    assert agent.clock.timestep(101) == 100
    assert agent.clock.env_frames(101) == 200


# Totals at sizes 1, 5, 19, 48, 317 for (observations, actions).
TOTALS = {
    (24, 6): (1_214_651, 4_960_618, 18_062_442, 47_208_298, 312_595_417),
    (3, 1): (1_197_745, 4_932_192, 17_994_848, 47_090_016, 312_263_631),
    (5, 1): (1_198_257, 4_932_704, 17_996_896, 47_093_600, 312_271_823),
    (17, 6): (1_212_859, 4_958_826, 18_055_274, 47_195_754, 312_566_745),
    (67, 21): (1_260_249, 5_040_776, 18_244_744, 47_527_304, 313_508_855),
    (223, 38): (1_339_387, 5_159_082, 18_561_194, 48_081_066, 314_983_449),
}


@pytest.mark.parametrize("dims", TOTALS, ids=lambda dims: f"O{dims[0]}-A{dims[1]}")
def test_parameter_counts_of_common_tasks(dims):
    env = CounterEnv([500], obs_dim=dims[0], action_dim=dims[1])
    totals = [TDMPC2(env, model_size=s).parameter_counts()["total"] for s in (1, 5, 19, 48, 317)]
    assert tuple(totals) == TOTALS[dims]


def test_the_description_names_what_matters_before_a_run():
    text = " ".join(TDMPC2("Pendulum-v1").describe().values())
    for part in ("Pendulum-v1", "4,932,192", "0.975", "1,000 random steps", "6 iterations of 512"):
        assert part in text


def test_a_protocol_sets_defaults_and_its_changes_are_named():
    agent = TDMPC2.from_protocol("quick", "Pendulum-v1", batch_size=8)
    quick = TDMPC2.protocols["quick"].settings
    assert all(getattr(agent.settings, name) == value for name, value in quick.items())
    lines = agent.describe_departures()
    assert "batch_size 8 (paper: " in lines["departures"]
    assert lines["of these, not of quick"].startswith("batch_size 8 (quick: ")
    assert TDMPC2("Pendulum-v1").describe_departures() == {
        "departures": "none: the paper's hyperparameters"
    }
    with pytest.raises(ValueError, match="the protocol must be one of paper, dmc-paper, quick"):
        TDMPC2.from_protocol("fast", "Pendulum-v1")


def test_a_run_that_cannot_fit_is_refused_before_any_work():
    with pytest.raises(ValueError, match=r"this run cannot fit: it needs about .* Use a"):
        TDMPC2("Pendulum-v1", model_size=317).train(
            seed=range(400), n_timesteps=1_000_000, progress=False
        )

"""Policies to deploy: a toy agent exported, loaded, run, mistreated and damaged."""

import dataclasses
import json
import re
import shutil
import subprocess
import sys
import tracemalloc

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import wm_collect
from wm_collect.compile_cache import count_compilations
from wm_collect.deploy import Deployable, export_policy, load_policy
from wm_collect.testing import CounterEnv

pytestmark = pytest.mark.full_optimisation

OBS_DIM = 3
LOW, HIGH = (-2.0, 0.5), (3.0, 1.0)


@dataclasses.dataclass(frozen=True)
class ToyAgent:
    """Counts the decisions of an episode, and adds the count to a noisy linear policy."""

    discrete: bool = False
    first_count: float = 0.0
    action_repeat: int = 1

    @property
    def env(self):
        env = CounterEnv([5], obs_dim=OBS_DIM, action_dim=2, discrete=self.discrete)
        env.spec = dataclasses.replace(env.spec, action_repeat=self.action_repeat)
        if not self.discrete:
            env.spec = dataclasses.replace(env.spec, action_low=LOW, action_high=HIGH)
        return env

    def act(self, weights, carry, obs, is_first, key):
        count = jnp.where(is_first, 0.0, carry["count"] + 1)
        noise = jax.random.normal(key, (obs.shape[0], 2))
        action = obs @ weights["linear"]["kernel"] + 0.01 * count[:, None] + 0.1 * noise
        if self.discrete:
            action = jnp.argmax(action, axis=-1).astype(jnp.int32)
        return action, {"count": count}

    def deployable(self, state, *, scale=1.0):
        return Deployable(
            agent="toy",
            env=self.env,
            weights={"linear": {"kernel": scale * state}},
            init_carry=lambda n: {"count": jnp.full(n, self.first_count)},
            act=self.act,
        )


KERNEL = jnp.array([[0.5, -0.2], [0.1, 0.3], [-0.4, 0.2]])


def observations(n, seed=0):
    return np.random.default_rng(seed).normal(size=(n, OBS_DIM)).astype(np.float32)


def expected(obs, counts, key, agent=None):
    """Return the toy's actions in agent units, from its definition."""
    agent = agent or ToyAgent()
    weights = {"linear": {"kernel": KERNEL}}
    carry = {"count": jnp.asarray(counts, jnp.float32) - 1}
    return agent.act(weights, carry, jnp.asarray(obs), jnp.zeros(len(obs), bool), key)[0]


def key_of(seed, decision):
    return jax.random.fold_in(jax.random.fold_in(jax.random.key(seed), 1), decision)


def in_env_units(action):
    """The mapping written out for this toy's two bounds."""
    unit = np.clip(np.asarray(action), -1, 1)
    return np.array([[0.5, 0.75]]) + np.array([[2.5, 0.25]]) * unit


def assert_actions(ours, agent_units):
    """Compare actions in environment units with ones in agent units."""
    np.testing.assert_allclose(ours, in_env_units(agent_units), rtol=1e-6)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return export_policy(ToyAgent(action_repeat=4), KERNEL, tmp_path_factory.mktemp("p") / "toy")


@pytest.fixture(scope="module")
def loaded(folder):
    return load_policy(folder)


@pytest.fixture
def policy(loaded):
    loaded.reset(n=2, seed=5)
    return loaded


@pytest.fixture
def copy(folder, tmp_path):
    return shutil.copytree(folder, tmp_path / "copy")


def test_a_decision_is_the_agents_in_environment_units(policy):
    obs = observations(2)
    for decision in range(3):
        action = policy(obs)
        assert action.shape == (2, 2) and action.dtype == np.float32
        counts = [decision, decision]
        assert_actions(action, expected(obs, counts, key_of(5, decision)))


def test_actions_stay_inside_the_bounds(tmp_path):
    policy = load_policy(export_policy(ToyAgent(), KERNEL, tmp_path / "wild", scale=1000.0))
    for seed in range(3):
        policy.reset(n=2)
        action = policy(observations(2, seed))
        assert (action >= np.float32(LOW)).all() and (action <= np.float32(HIGH)).all()
    assert np.isin(action[:, 0], (LOW[0], HIGH[0])).all(), "the bounds are reached"


def test_discrete_actions_are_choices(tmp_path):
    agent = ToyAgent(discrete=True)
    folder = export_policy(agent, KERNEL, tmp_path / "discrete", action_names=["left", "right"])
    policy = load_policy(folder)
    chosen = set()
    for decision in range(6):
        obs = observations(1, decision)
        action = policy(obs)
        assert action.shape == (1,) and action.dtype == np.int32
        assert action == expected(obs, [decision], key_of(0, decision), agent)
        chosen.add(int(policy(obs[0])) if decision == 5 else int(action[0]))
    assert chosen == {0, 1}
    described = policy.contract["action"]
    assert (described["kind"], described["n"]) == ("discrete", 2)
    assert described["names"] == ["left", "right"]


def test_one_environment_may_leave_out_the_leading_axis(loaded):
    obs = observations(1)
    loaded.reset(seed=3)
    flat = loaded(obs[0])
    loaded.reset(seed=3)
    np.testing.assert_array_equal(loaded(obs)[0], flat)
    assert flat.shape == (2,)


def test_is_first_forgets_the_carry_of_single_rows(policy):
    obs = observations(2)
    policy(obs)
    policy(obs)
    action = policy(obs, is_first=[False, True])
    np.testing.assert_array_equal(policy.carry["count"], [2, 0])
    assert_actions(action, expected(obs, [2, 0], key_of(5, 2)))


def test_the_seed_decides_the_draws_and_rows_do_not_disturb_each_other(loaded):
    obs = observations(3)

    def first_actions(n, seed):
        loaded.reset(n=n, seed=seed)
        return loaded(obs[:n])

    np.testing.assert_array_equal(first_actions(3, 1), first_actions(3, 1))
    assert (first_actions(3, 1) != first_actions(3, 2)).any()
    np.testing.assert_allclose(first_actions(3, 1)[:2], first_actions(2, 1), rtol=1e-6)


def test_observations_that_are_not_finite_are_refused_and_forgotten(policy):
    obs = observations(2)
    policy(obs)
    carry = policy.carry
    for value in (np.nan, np.inf, 1e300):
        bad = obs.astype(np.float64)
        bad[1, 2] = value
        with pytest.raises(ValueError, match=r"not finite in row\(s\) 1; .*not remembered"):
            policy(bad)
    np.testing.assert_array_equal(policy.carry["count"], carry["count"])
    # The draws go on as if the bad observations had never come.
    assert_actions(policy(obs), expected(obs, [1, 1], key_of(5, 1)))


def test_an_action_that_is_not_finite_is_an_error(tmp_path):
    policy = load_policy(export_policy(ToyAgent(), KERNEL, tmp_path / "huge", scale=1e38))
    with pytest.raises(ValueError, match=r"action is not finite .* in row\(s\) 0"):
        policy(np.array([1e38, 0.0, 1e38]))


MISTAKES = {
    "too few numbers": (lambda p: p(np.zeros((2, 2))), "shape (2, 3)", ValueError),
    "one row of two": (lambda p: p(np.zeros(3)), "got (3,)", ValueError),
    "texts": (lambda p: p([["a"] * 3] * 2), "real numbers", TypeError),
    "truth values": (lambda p: p(np.zeros((2, 3), bool)), "dtype bool", TypeError),
    "is_first of one": (lambda p: p(np.zeros((2, 3)), [True]), "shape (2,)", ValueError),
    "is_first of numbers": (lambda p: p(np.zeros((2, 3)), [0, 1]), "True or False", TypeError),
    "no environment": (lambda p: p.reset(n=0), "n must be", ValueError),
    "a negative seed": (lambda p: p.reset(seed=-1), "seed must be", ValueError),
    "a large seed": (lambda p: p.reset(seed=2**32), "at most 4294967295", ValueError),
    "no time": (lambda p: p.rate(seconds=0), "seconds must be", ValueError),
    "another carry": (lambda p: setattr(p, "carry", {"x": 1}), "['count']", ValueError),
    "a carry of one": (
        lambda p: setattr(p, "carry", {"count": np.zeros(1, np.float32)}),
        "float32 of shape (2,)",
        ValueError,
    ),
}


@pytest.mark.parametrize("case", MISTAKES)
def test_mistakes_end_in_a_sentence(policy, case):
    mistake, words, error = MISTAKES[case]
    with pytest.raises(error) as caught:
        mistake(policy)
    assert words in str(caught.value)


def test_integers_and_doubles_are_observations_too(policy):
    whole = np.array([[1, 2, 3], [4, 5, 6]])
    from_integers = policy(whole)
    policy.reset(n=2, seed=5)
    np.testing.assert_array_equal(policy(whole.astype(np.float64).tolist()), from_integers)


def test_a_carry_can_be_taken_out_and_put_back(policy):
    obs = observations(2)
    policy(obs)
    moment = policy.carry
    policy(obs)
    policy.carry = moment
    moment["count"] += 100  # a copy: changes nothing inside
    action = policy(obs)
    np.testing.assert_array_equal(policy.carry["count"], [1, 1])
    assert_actions(action, expected(obs, [1, 1], key_of(5, 2)))


def test_reset_compiles_once_and_ten_thousand_decisions_compile_nothing_and_keep_nothing(folder):
    policy = load_policy(folder)
    with count_compilations() as counts:
        policy.reset(n=3)
    assert [*counts.compiled, *["loaded"] * counts.loaded] != []
    obs = observations(3)
    with count_compilations() as counts:
        policy(obs)
        before = len(jax.live_arrays())
        for i in range(10_000):
            policy(obs, is_first=[i % 7 == 0] * 3 if i % 2 else None)
            if i == 1_000:
                tracemalloc.start()
        kept_bytes, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        policy.carry = policy.carry
        policy(obs)
        policy.rate(seconds=0.01)
        policy.reset(n=3, seed=1)
        policy(obs)
    assert (counts.compiled, counts.loaded) == ([], 0)
    assert len(jax.live_arrays()) == before
    # Of 9,000 calls; one array kept by each would be a megabyte.
    assert kept_bytes < 100_000


def test_measuring_the_rate_changes_nothing(policy):
    obs = observations(2)
    policy(obs)
    assert policy.rate(seconds=0.01) > 1
    assert_actions(policy(obs), expected(obs, [1, 1], key_of(5, 1)))


def test_the_contract_says_what_goes_in_and_out(folder):
    contract = json.loads((folder / "contract.json").read_text(encoding="utf-8"))
    assert contract["observation"]["names"] == ["obs_0", "obs_1", "obs_2"]
    action = contract["action"]
    assert (action["low"], action["high"]) == (list(LOW), list(HIGH))
    assert (action["center"], action["half_range"]) == ([0.5, 0.75], [2.5, 0.25])
    assert contract["timing"]["action_repeat"] == 4
    assert "once every 4 simulator steps" in contract["timing"]["meaning"]
    assert contract["carry"] == [{"name": "count", "shape": [], "dtype": "float32"}]
    assert [leaf["name"] for leaf in contract["weights"]] == ["linear/kernel"]
    assert contract["program"]["platforms"] == ["cpu", "cuda", "tpu"]
    assert set(contract["files"]) == {p.name for p in folder.iterdir()} - {"contract.json"}


def test_bounds_without_end_are_null(tmp_path):
    class Unbounded(ToyAgent):
        @property
        def env(self):
            env = super().env
            open_ends = {"action_low": (-np.inf, -np.inf), "action_high": (np.inf, np.inf)}
            env.spec = dataclasses.replace(env.spec, **open_ends)
            return env

    policy = load_policy(export_policy(Unbounded(), KERNEL, tmp_path / "open", scale=1000.0))
    action = policy.contract["action"]
    assert action["low"] == action["high"] == [None, None]
    assert (action["center"], action["half_range"]) == ([0, 0], [1, 1])
    assert np.abs(policy(observations(1))).max() == 1


@pytest.mark.parametrize(
    ("agent", "state", "options", "words"),
    [
        (ToyAgent(), KERNEL.at[0, 0].set(jnp.nan), {}, "linear/kernel"),
        (ToyAgent(), KERNEL, {"obs_names": ["x", "x", "y"]}, "obs_names must be 3 different"),
        (ToyAgent(), KERNEL, {"action_names": ["x"]}, "action_names must be 2 different"),
        (ToyAgent(first_count=1.0), KERNEL, {}, "carry that is not zero"),
    ],
    ids=["weights", "observation names", "action names", "first carry"],
)
def test_what_cannot_be_exported_leaves_no_folder(agent, state, options, words, tmp_path):
    with pytest.raises(ValueError, match=words):
        export_policy(agent, state, tmp_path / "new", **options)
    assert not list(tmp_path.iterdir())


def test_nothing_is_overwritten(folder):
    before = (folder / "contract.json").read_bytes()
    with pytest.raises(FileExistsError, match="another folder"):
        export_policy(ToyAgent(), KERNEL, folder)
    assert (folder / "contract.json").read_bytes() == before


def test_a_missing_flatbuffers_is_named(folder, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "flatbuffers", None)
    with pytest.raises(ModuleNotFoundError, match="pip install flatbuffers"):
        load_policy(folder)
    with pytest.raises(ModuleNotFoundError, match="pip install flatbuffers"):
        export_policy(ToyAgent(), KERNEL, tmp_path / "new")


def edit_contract(folder, **changes):
    path = folder / "contract.json"
    path.write_text(json.dumps(json.loads(path.read_text(encoding="utf-8")) | changes))


DAMAGE = {
    "no folder": (shutil.rmtree, "there is no policy folder"),
    "a foreign folder": (lambda f: (f / "contract.json").unlink(), "is not a policy folder"),
    "a cut contract": (lambda f: (f / "contract.json").write_text("{"), "is cut short"),
    "a list": (lambda f: (f / "contract.json").write_text("[]"), "is cut short"),
    "another format": (lambda f: edit_contract(f, format="recipe"), "of 'recipe'"),
    "a newer format": (lambda f: edit_contract(f, format_version=2), "a newer wm-collect"),
    "an edited contract": (lambda f: edit_contract(f, agent="other"), "was changed"),
    "no weights": (lambda f: (f / "weights.npz").unlink(), "lacks its file weights.npz"),
    "cut weights": (lambda f: (f / "weights.npz").write_bytes(b"PK"), "weights.npz is damaged"),
    "another program": (
        lambda f: (f / "policy.stablehlo").write_bytes(b"\0" * 100),
        "policy.stablehlo is damaged",
    ),
}


@pytest.mark.parametrize("case", DAMAGE)
def test_a_damaged_or_foreign_folder_is_refused(copy, case):
    damage, words = DAMAGE[case]
    damage(copy)
    with pytest.raises((ValueError, FileNotFoundError), match=words) as caught:
        load_policy(copy)
    assert "\n" not in str(caught.value)


def run_python(code, *arguments, cwd=None):
    result = subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)],
        capture_output=True,
        text=True,
        cwd=cwd,
        timeout=120,
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_loading_and_acting_import_neither_environments_nor_training_code(folder):
    code = (
        "import sys\n"
        "from wm_collect import load_policy\n"
        "policy = load_policy(sys.argv[1])\n"
        "policy([0.0, 0.0, 0.0])\n"
        "print(*sys.modules)\n"
    )
    modules = set(run_python(code, folder).split())
    roots = {name.partition(".")[0] for name in modules}
    libraries = {"gymnax", "brax", "mujoco", "mujoco_playground", "flax", "optax", "orbax", "chex"}
    assert not roots & (libraries | {"tyro", "rich", "matplotlib", "wm_numerics"})
    own = {name.split(".")[1] for name in modules if name.startswith("wm_collect.")}
    assert own == {"actions", "checks", "deploy", "versions"}


def test_the_snippet_in_the_folder_runs_without_this_library(folder, loaded):
    readme = (folder / "README.md").read_text(encoding="utf-8")
    (snippet,) = re.findall(r"```python\n(.*?)```", readme, flags=re.DOTALL)
    assert "wm_" not in snippet
    snippet += "assert decide._cache_size() == 1\n"  # one program serves every decision
    check = "import sys\nassert not [name for name in sys.modules if name.startswith('wm_')]\n"
    printed = run_python(snippet + check, cwd=folder)
    printed_actions = np.array(re.findall(r"-?\d+\.\d+", printed), float).reshape(3, 2)

    loaded.reset(n=1, seed=0)
    actions = [loaded(np.zeros(OBS_DIM)) for _ in range(3)]
    np.testing.assert_allclose(printed_actions, actions, rtol=1e-6)


def test_public_names_are_imported_when_first_used():
    assert set(wm_collect._HOME_OF) == set(wm_collect.__all__)
    assert all(hasattr(wm_collect, name) for name in wm_collect.__all__)
    assert set(wm_collect.__all__) <= set(dir(wm_collect))
    with pytest.raises(AttributeError, match="no attribute 'make_envs'"):
        _ = wm_collect.make_envs
    modules = run_python("import sys, wm_collect\nprint(*sys.modules)").split()
    assert "jax" not in modules
    assert [name for name in modules if name.startswith("wm_collect.")] == []

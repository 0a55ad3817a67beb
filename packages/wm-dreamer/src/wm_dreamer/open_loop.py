"""Open-loop predictions: what the model expects of an episode it has seen only the beginning of.

The model filters the first rows of a real episode, and then predicts the rest from the actions
alone. Drawn over what happened, it shows what the policy's imagination is worth.

Source: danijar/dreamerv3@2411f7d, dreamerv3/agent.py, `Agent.report` (there for images).
"""

from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from wm_collect.evaluate import Trajectory
from wm_dreamer import networks, rssm
from wm_dreamer.action_distributions import action_vector
from wm_dreamer.config import DreamerV3Config
from wm_dreamer.observe_sequence import observe
from wm_dreamer.rssm import Observed, Params, RSSMState
from wm_numerics import symexp

CONTEXT_ROWS = 5
PREDICTED_ROWS = 45
SAMPLES = 16
# More observation dimensions than this make the picture unreadable.
_MAX_DIMENSIONS = 8


class OpenLoop(NamedTuple):
    """Predictions of M sampled futures for R rows, of which the first were filtered.

    Attributes:
        obs: predicted observations, `[M, R, O]`, raw units.
        reward: predicted rewards on entering each row, `[M, R]`.
        cont: predicted probability that the episode goes on, the discount divided out, `[M, R]`.
    """

    obs: jax.Array
    reward: jax.Array
    cont: jax.Array


def predict_open_loop(
    params: Params,
    obs: jax.Array,
    action: jax.Array,
    key: jax.Array,
    *,
    n_context: int,
    n_samples: int = SAMPLES,
    config: DreamerV3Config,
) -> OpenLoop:
    """Filter the first rows of an episode, and predict the others from its actions.

    Args:
        params: parameters of all modules.
        obs: observations from the reset on, `[R, O]` float32; those after the context are not
            read.
        action: action chosen at each row, `[R, A]` float32 or `[R]` int32; the last is not read.
        key: consumed.
        n_context: rows that are filtered, 1 to R.
        n_samples: M, futures that are sampled.
        config: static.

    Returns:
        Reconstructions of the context and predictions of the rest.

    Raises:
        ValueError: `n_context` is not between 1 and R.
    """
    n_rows = obs.shape[0]
    if not 1 <= n_context <= n_rows:
        raise ValueError(f"n_context must lie between 1 and the {n_rows} rows, got {n_context}.")
    filter_key, predict_key = jax.random.split(key)
    actions = action_vector(action, config=config)
    observed = filter_rows(
        params, obs[:n_context], actions[:n_context], filter_key, n_samples=n_samples, config=config
    )
    followed = jnp.repeat(actions[n_context - 1 : n_rows - 1, None], n_samples, axis=1)
    predicted = imagine_rows(
        params,
        RSSMState(observed.deter[-1], observed.stoch[-1]),
        followed,
        predict_key,
        config=config,
    )
    features = jnp.concatenate([features_of(observed), features_of(predicted)])
    return decode(params, jnp.swapaxes(features, 0, 1), config=config)


def filter_rows(
    params: Params,
    obs: jax.Array,
    actions: jax.Array,
    key: jax.Array,
    *,
    n_samples: int,
    config: DreamerV3Config,
) -> Observed:
    """Return the posterior states of an episode's first rows, several times sampled.

    Args:
        params: parameters of all modules.
        obs: observations from the reset on, `[R, O]` float32.
        actions: actions chosen at these rows, one-hot or raw, `[R, A]`; the last is not read.
        key: consumed.
        n_samples: M, independent samples of the latents.
        config: static.

    Returns:
        Posterior states, `[R, M, ...]`.
    """
    n_rows = obs.shape[0]

    def repeated(x: jax.Array) -> jax.Array:
        """Return `[R, ...]` as `[R, M, ...]`."""
        return jnp.broadcast_to(x[:, None], (n_rows, n_samples, *x.shape[1:]))

    previous = jnp.concatenate([jnp.zeros_like(actions[:1]), actions[:-1]])
    return observe(
        params["rssm"],
        rssm.initial_state(config, n_samples),
        repeated(previous),
        repeated(networks.encode(params["encoder"], obs, config=config)),
        repeated(jnp.arange(n_rows) == 0),
        jax.random.uniform(key, (n_rows, n_samples, config.stoch)),
        config=config,
    )


def imagine_rows(
    params: Params, start: RSSMState, actions: jax.Array, key: jax.Array, *, config: DreamerV3Config
) -> RSSMState:
    """Return the states that the prior predicts of given actions, one sample each.

    Args:
        params: parameters of all modules.
        start: N states to start from, `[N, ...]`.
        actions: actions taken from there, one-hot or raw, `[K, N, A]`.
        key: consumed.
        config: static.

    Returns:
        The states 1 to K steps after the start, `[K, N, ...]`.
    """

    def step(state: RSSMState, x: tuple[jax.Array, jax.Array]) -> tuple[RSSMState, RSSMState]:
        action, noise = x
        state = rssm.imagine_step(params["rssm"], state, action, noise, config=config)
        return state, state

    noise = jax.random.uniform(key, (*actions.shape[:2], config.stoch))
    return jax.lax.scan(step, start, (actions, noise))[1]


def features_of(state: RSSMState | Observed) -> jax.Array:
    """Return what heads read of states `[..., D]` and `[..., S·C]`: both in a row."""
    return jnp.concatenate([state.deter, state.stoch], axis=-1)


def decode(params: Params, features: jax.Array, *, config: DreamerV3Config) -> OpenLoop:
    """Return what the heads say of features `[M, R, D + S·C]`; other leading axes are kept too."""
    reward = networks.apply(networks.reward_head(config), params["reward"], features)
    cont = networks.apply(networks.continue_head(config), params["continue"], features)[..., 0]
    return OpenLoop(
        obs=symexp(networks.apply(networks.decoder(config), params["decoder"], features)),
        reward=config.two_hot.mean(reward),
        cont=jnp.minimum(jax.nn.sigmoid(cont) / config.gamma, 1.0),
    )


def draw_open_loop(
    params: Params, trajectory: Trajectory, path: Path, *, config: DreamerV3Config
) -> None:
    """Draw open-loop predictions of an evaluated episode over the truth.

    Each panel shows one observation dimension, or the reward: the truth, the mean of the sampled
    futures, and the range that holds 80 % of them. The last panel compares the error with that of
    persistence, which predicts the last seen observation for ever.

    Args:
        params: parameters of all modules.
        trajectory: an episode, as an evaluation with `record=True` returns it.
        path: picture to write; its ending chooses the format.
        config: static.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    length = int(trajectory.length)
    n_rows = min(length + 1, CONTEXT_ROWS + PREDICTED_ROWS)
    n_context = min(CONTEXT_ROWS, n_rows - 1)
    obs = np.asarray(trajectory.obs)[:n_rows]
    actions = np.asarray(trajectory.action)
    # The last row's action is not read, but has a place.
    actions = np.concatenate([actions, np.zeros_like(actions[:1])])[:n_rows]
    predict = jax.jit(predict_open_loop, static_argnames=("n_context", "n_samples", "config"))
    guess = predict(params, obs, actions, jax.random.key(0), n_context=n_context, config=config)
    guess = jax.tree.map(np.asarray, guess)
    reward = np.concatenate([[0.0], np.asarray(trajectory.reward)[: n_rows - 1]])

    n_shown = min(obs.shape[1], _MAX_DIMENSIONS)
    panels = [(f"observation {i}", obs[:, i], guess.obs[:, :, i]) for i in range(n_shown)]
    panels.append(("reward", reward, guess.reward))
    n_columns = 2
    n_lines = -(-(len(panels) + 1) // n_columns)
    figure = Figure(figsize=(11, 2.3 * n_lines + 0.6), dpi=110, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(n_lines, n_columns, squeeze=False).ravel()
    rows = np.arange(n_rows)
    for axis, (title, truth, samples) in zip(axes, panels, strict=False):
        low, high = np.percentile(samples, (10, 90), axis=0)
        axis.fill_between(rows, low, high, color="#0b62a4", alpha=0.2, linewidth=0)
        axis.plot(rows, truth, color="black", linewidth=1.4, label="truth")
        axis.plot(rows, samples.mean(0), color="#0b62a4", linewidth=1.4, label="model")
        axis.set_title(title, loc="left", fontsize=9)
    error_axis = axes[len(panels)]
    # Per dimension in units of its own spread over the rows shown, so that none dominates.
    scale = np.maximum(obs.std(0), 1e-6)
    model_error = np.sqrt((np.square((guess.obs.mean(0) - obs) / scale)).mean(-1))
    persistence = np.sqrt((np.square((obs[n_context - 1] - obs) / scale)).mean(-1))
    error_axis.plot(rows, model_error, color="#0b62a4", label="model")
    error_axis.plot(rows[n_context:], persistence[n_context:], color="#d1495b", label="persistence")
    error_axis.set_title("error of the mean, in standard deviations", loc="left", fontsize=9)
    for axis in axes[len(panels) + 1 :]:
        axis.set_visible(False)
    for axis in axes[: len(panels) + 1]:
        axis.axvline(n_context - 0.5, color="0.5", linestyle=":", linewidth=1)
        axis.grid(alpha=0.25)
        axis.set_xlim(0, n_rows - 1)
        axis.tick_params(labelsize=8)
    axes[0].legend(fontsize=8)
    error_axis.legend(fontsize=8)
    figure.suptitle(
        f"Rows of an episode: {n_context} filtered, then predicted from the actions alone; the "
        "band holds 80 % of the sampled futures",
        fontsize=10,
    )
    figure.savefig(path)

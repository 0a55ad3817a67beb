"""Extensions: objects that add to a training run at declared phases.

An extension is any object with one or more of the methods below; a method that exists is run.
`agent` is the agent's whole state, `carry` what this extension keeps from call to call. All of
them are traced into the compiled program, so they are pure functions of their arguments.

    init_state(agent, key) -> carry                                 once, when a fresh run starts
    pretrain(agent, carry, key) -> (agent, carry)                   once, before tick 0
    post_update(agent, carry, key, step, metrics) -> (agent, carry) after every update
    eval_metrics(agent, carry, key) -> dict[str, scalar]            at every evaluation

`step` is the absolute index of the update just made, from 0 over the whole run, and `metrics`
what that update reported. An extension without `init_state` carries the empty tuple. A resumed
run restores the carry and runs neither `init_state` nor `pretrain` again.

Example:
    class CountUpdates:
        def init_state(self, agent, key):
            return jnp.int32(0)

        def post_update(self, agent, carry, key, step, metrics):
            return agent, carry + 1
"""

from collections.abc import Iterable, Sequence
from typing import Any

import jax

from wm_collect import randomness

PHASES = ("init_state", "pretrain", "post_update", "eval_metrics")
"""The phases that the training loop can run."""

OTHER_PHASES = ("on_target", "critic_loss", "actor_loss", "action", "eval_action")
"""Phases known from model-free agents, which have no defined meaning on latent-state agents."""


def implemented_phases(extension: object) -> tuple[str, ...]:
    """Return the names of the known phases that `extension` implements, in a fixed order."""
    return tuple(name for name in PHASES + OTHER_PHASES if callable(getattr(extension, name, None)))


def check_extensions(
    extensions: Iterable[object], supported: Iterable[str] = PHASES, agent_name: str = "this agent"
) -> tuple[object, ...]:
    """Return the extensions as a tuple after checking that every phase of theirs would run.

    Args:
        extensions: the objects given by the user.
        supported: the phases the agent declares, a subset of `PHASES`.
        agent_name: how the error messages call the agent.

    Raises:
        TypeError: `extensions` is a single object instead of a sequence.
        ValueError: an extension implements no phase at all (a misspelt name would silently never
            run), or one that the agent does not support.
    """
    if not isinstance(extensions, Iterable) or implemented_phases(extensions):
        raise TypeError(
            f"extensions must be a sequence of extension objects, got {extensions!r}: "
            "write extensions=(my_extension,)."
        )
    extensions = tuple(extensions)
    supported = tuple(supported)
    unknown = sorted(set(supported) - set(PHASES))
    if unknown:
        raise ValueError(
            f"{agent_name} declares the phases {', '.join(unknown)}, which the training loop "
            f"cannot run; it runs {', '.join(PHASES)}."
        )
    for extension in extensions:
        name = type(extension).__name__
        phases = implemented_phases(extension)
        if not phases:
            raise ValueError(
                f"the extension {name} implements no known phase, so it would never run; "
                f"{agent_name} runs {', '.join(supported)}."
            )
        rejected = [phase for phase in phases if phase not in supported]
        if rejected:
            raise ValueError(
                f"the extension {name} implements {', '.join(rejected)}, which {agent_name} does "
                f"not run; it runs {', '.join(supported)}. Remove the method or use another agent."
            )
    return extensions


def start_extensions(
    extensions: Sequence[Any], agent: Any, seed_key: jax.Array
) -> tuple[Any, tuple[Any, ...]]:
    """Make every extension's carry, then run the `pretrain` phases in order.

    Args:
        extensions: checked extensions.
        agent: the agent's initial state.
        seed_key: the key of the run's seed, `[]`.

    Returns:
        The agent's state after pretraining, and one carry per extension.
    """
    init_key = jax.random.fold_in(seed_key, randomness.EXTENSION_STREAM)
    carries = [
        extension.init_state(agent, jax.random.fold_in(init_key, index))
        if _implements(extension, "init_state")
        else ()
        for index, extension in enumerate(extensions)
    ]
    pretrain_key = jax.random.fold_in(seed_key, randomness.PRETRAIN_STREAM)
    for index, extension in enumerate(extensions):
        if _implements(extension, "pretrain"):
            key = jax.random.fold_in(pretrain_key, index)
            agent, carries[index] = extension.pretrain(agent, carries[index], key)
    return agent, tuple(carries)


def apply_post_update(
    extensions: Sequence[Any],
    agent: Any,
    carries: tuple[Any, ...],
    key: jax.Array,
    step: jax.Array,
    metrics: dict[str, jax.Array],
) -> tuple[Any, tuple[Any, ...]]:
    """Fold the extensions' `post_update` over the agent's state, in order.

    Args:
        extensions: checked extensions.
        agent: the agent's state after the update.
        carries: one carry per extension.
        key: key of this update's `post_update` phases.
        step: absolute index of the update, int32 `[]`.
        metrics: what the update reported, scalars by name.

    Returns:
        The agent's state and the carries.
    """
    new_carries = list(carries)
    for index, extension in enumerate(extensions):
        if _implements(extension, "post_update"):
            agent, new_carries[index] = extension.post_update(
                agent, new_carries[index], jax.random.fold_in(key, index), step, metrics
            )
    return agent, tuple(new_carries)


def evaluation_metrics(
    extensions: Sequence[Any], agent: Any, carries: tuple[Any, ...], key: jax.Array
) -> dict[str, jax.Array]:
    """Return the extensions' `eval_metrics`, merged into one dictionary.

    Raises:
        ValueError: two extensions report the same name.
    """
    merged: dict[str, jax.Array] = {}
    for index, extension in enumerate(extensions):
        if _implements(extension, "eval_metrics"):
            reported = extension.eval_metrics(agent, carries[index], jax.random.fold_in(key, index))
            repeated = sorted(set(merged) & set(reported))
            if repeated:
                raise ValueError(
                    f"two extensions report the evaluation metric {repeated[0]}: rename one."
                )
            merged.update(reported)
    return merged


def _implements(extension: object, phase: str) -> bool:
    return callable(getattr(extension, phase, None))

"""Each seed's first number that was not finite: found inside the program, told on the host.

A seed that met one has stopped: its updates leave the learner as it is, its numbers are no longer
logged, and the seeds beside it go on as if they were alone. A run stops when no seed is left.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from wm_collect.row import EpisodeRecord

_NONE = -1
# What rows are checked for, in the order in which one causes the next.
_ROW_PARTS = ("the observation", "the reward", "the action")


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class Health:
    """The first number of a seed's run that was not finite.

    Attributes:
        tick: absolute tick at which it was met, int32 `[]`; −1 while there was none.
        update: updates made in the run before it was met, int32 `[]`.
        source: its index in `sources`, int32 `[]`.
        value: the number itself, float32 `[]`; 0 for one of an array, of which it is not kept.
    """

    tick: jax.Array
    update: jax.Array
    source: jax.Array
    value: jax.Array

    @classmethod
    def good(cls) -> "Health":
        """Return the health of a seed that met nothing yet."""
        none = jnp.int32(_NONE)
        return cls(tick=none, update=none, source=none, value=jnp.float32(0))

    @property
    def stopped(self) -> jax.Array:
        """Whether the seed has stopped learning, bool `[]`."""
        return self.tick != _NONE

    def after_rows(self, record: EpisodeRecord, tick: jax.Array, update: jax.Array) -> "Health":
        """Return the health after a tick's rows were collected."""
        parts = (record.obs_finite, record.reward_finite, record.action_finite)
        finite = jnp.stack([jnp.all(part) for part in parts])
        return self._after(finite, jnp.zeros(len(parts), jnp.float32), 0, tick, update)

    def after_update(
        self, metrics: Mapping[str, jax.Array], names: Sequence[str], tick: jax.Array, update: Any
    ) -> "Health":
        """Return the health after an update that reported `metrics`."""
        if not names:
            return self
        values = jnp.stack([metrics[name].astype(jnp.float32) for name in names])
        return self._after(jnp.isfinite(values), values, len(_ROW_PARTS), tick, update)

    def after_chunk(
        self, trained: Sequence[jax.Array], n_metrics: int, tick: jax.Array, update: jax.Array
    ) -> "Health":
        """Return the health after a look at all that learning changes."""
        if not trained:
            return self
        finite = jnp.stack([jnp.all(jnp.isfinite(leaf)) for leaf in trained])
        zeros = jnp.zeros(len(trained), jnp.float32)
        return self._after(finite, zeros, len(_ROW_PARTS) + n_metrics, tick, update)

    def _after(
        self, finite: jax.Array, values: jax.Array, offset: int, tick: jax.Array, update: jax.Array
    ) -> "Health":
        first = jnp.argmin(finite)  # the first False
        met = Health(
            tick=jnp.asarray(tick, jnp.int32),
            update=jnp.asarray(update, jnp.int32),
            source=(first + offset).astype(jnp.int32),
            value=values[first],
        )
        take = ~self.stopped & ~finite[first]
        return jax.tree.map(lambda new, old: jnp.where(take, new, old), met, self)


def sources(metric_names: Sequence[str], trained_names: Sequence[str]) -> tuple[str, ...]:
    """Return what `Health.source` counts, as messages call it."""
    return (*_ROW_PARTS, *metric_names, *trained_names)


def describe(health: Health, index: int, names: Sequence[str], seeds: Sequence[int] | None) -> str:
    """Return the sentence that says what one stopped seed met.

    Args:
        health: of all seeds, NumPy arrays `[S]`, or `[]` for a run without a seed axis.
        index: which of them.
        names: see `sources`.
        seeds: the seeds; None for a run without a seed axis.
    """
    tick, update, source, value = (
        np.atleast_1d(leaf)[index].item()
        for leaf in (health.tick, health.update, health.source, health.value)
    )
    if value == 0:
        what = f"{names[source]} is not finite after {update:,} update(s)"
    else:
        what = f"{names[source]} became {value} in update {update + 1:,}"
    seed = "" if seeds is None else f", seed {seeds[index]}"
    return f"{what}, tick {tick}{seed}"

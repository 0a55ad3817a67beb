"""What a run will need of the device, and how one that cannot fit is refused."""

import jax
import jax.numpy as jnp
import pytest

from wm_collect import forecast
from wm_collect.forecast import MemoryForecast

FITS = MemoryForecast(
    n_seeds=2,
    replay=300,
    learner=80,
    shared=40,
    working=20,
    device=1_000,
    device_name="cpu",
    replay_setting="buffer_size",
    replay_rows=600,
)


def changed(**fields):
    return MemoryForecast(**(vars(FITS) | fields))


def test_seeds_add_up_and_shared_data_count_once():
    assert FITS.total == 40 + 2 * 400
    assert FITS.most_seeds == 2
    FITS.check()
    described = FITS.describe()
    assert described["memory"].startswith("about 840 B for 2 seeds: networks and optimiser 80 B")
    assert described["device"] == "cpu with 1.0 kB: room for 2 seed(s)"


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        # Three seeds have (1000 − 40) / 3 − 100 = 220 bytes of replay each, of 300 for 600 rows.
        ({"n_seeds": 3}, "Use at most 2 seed(s) or a buffer_size of at most 440."),
        # No seed fits; one alone has 860 of the 3,000 bytes.
        (
            {"replay": 3_000, "n_seeds": 2},
            "Use a buffer_size of at most 172 and one seed.",
        ),
        ({"replay": 3_000, "n_seeds": 1}, "Use a buffer_size of at most 172."),
        ({"learner": 2_000}, "Use a smaller model."),
    ],
)
def test_a_run_that_cannot_fit_is_refused_with_what_would(fields, message):
    with pytest.raises(ValueError, match=r"this run cannot fit: it needs about") as caught:
        changed(**fields).check()
    assert str(caught.value).endswith(message)


def test_an_unknown_device_is_trusted():
    unknown = changed(device=None, n_seeds=10**9)
    unknown.check()
    assert unknown.most_seeds is None and "device" not in unknown.describe()


def test_bytes_are_those_of_the_arrays_keys_included():
    tree = {"a": jnp.zeros((3, 5)), "b": jnp.zeros(7, jnp.int8), "key": jax.random.key(0)}
    assert forecast.tree_bytes(tree) == 60 + 7 + 8
    assert forecast.tree_bytes(jax.eval_shape(lambda: tree)) == 75


def test_working_memory_counts_what_is_alive_at_once():
    x = jnp.zeros((100, 100))

    def chain(x):
        for _ in range(50):
            x = x @ x  # two products are alive at a time
        return x

    def kept(x):
        return sum(jnp.sum(y) for y in [x @ (x + i) for i in range(50)])

    assert forecast.working_bytes(chain, x) == 2 * x.nbytes
    assert forecast.working_bytes(kept, x) >= 50 * x.nbytes
    assert forecast.working_bytes(lambda x: jnp.tanh(x) + 1, x) == 0


def test_the_estimate_is_near_what_xla_allots():
    def loss(ws, x):
        for w in ws:
            x = jnp.tanh(x @ w)
        return jnp.sum(x**2)

    ws = [jnp.zeros((128, 128))] * 8
    x = jnp.zeros((1_024, 128))
    gradient = jax.grad(loss)
    allotted = jax.jit(gradient).lower(ws, x).compile().memory_analysis().temp_size_in_bytes
    outputs = forecast.tree_bytes(ws)
    assert 0.5 < forecast.working_bytes(gradient, ws, x) / (allotted + outputs) < 2

"""Keys of a run."""

import itertools

import jax
import numpy as np
import pytest

from wm_collect import randomness


def bits(key):
    return tuple(np.asarray(jax.random.key_data(key)).tolist())


def test_a_list_holds_the_keys_of_its_seeds():
    keys = randomness.seed_keys([7, 2**32 - 1])
    assert keys.shape == (2,)
    assert bits(keys[0]) == bits(randomness.seed_keys(7)) == bits(jax.random.key(7))
    assert bits(keys[1]) == bits(jax.random.key(2**32 - 1))


@pytest.mark.parametrize(
    ("seeds", "error", "message"),
    [
        ([], ValueError, "the list of seeds is empty"),
        ([1, 2, 1], ValueError, r"must differ, got \[1, 2, 1\]"),
        (-1, ValueError, "between 0 and 4294967295, got -1"),
        (2**32, ValueError, "between 0 and 4294967295"),
        (1.0, TypeError, "must be an integer or a list of integers, got 1.0"),
        (True, TypeError, "got True"),
        ("12", TypeError, "got '1'"),
    ],
)
def test_a_wrong_seed_is_told_in_a_sentence(seeds, error, message):
    with pytest.raises(error, match=message):
        randomness.seed_keys(seeds)


def test_streams_and_ticks_never_share_a_key():
    keys = []
    for seed in (0, 1):
        seed_key = randomness.seed_keys(seed)
        for stream in (
            randomness.INIT_STREAM,
            randomness.EXTENSION_STREAM,
            randomness.PRETRAIN_STREAM,
        ):
            keys.append(jax.random.fold_in(seed_key, stream))
        for tick in (0, 1, 2):
            keys.append(randomness.evaluation_key(seed_key, tick))
            tick_key = randomness.tick_key(seed_key, tick)
            keys += [jax.random.fold_in(tick_key, purpose) for purpose in range(3)]
    assert all(bits(a) != bits(b) for a, b in itertools.combinations(keys, 2))

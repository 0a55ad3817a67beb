"""Inputs of the recurrent model: B sequences of T rows, with resets inside."""

import numpy as np

from wm_dreamer.rssm import RSSMState

from .tiny import CONFIG, moved_learner

T, B = 6, 3
D, S, C, G = CONFIG.deter, CONFIG.stoch, CONFIG.classes, CONFIG.blocks


def params_of(config=CONFIG):
    return moved_learner(config).params["rssm"]


def inputs(seed=0, config=CONFIG):
    """Start, previous actions, embeddings, resets and noise of B sequences of T rows."""
    rng = np.random.default_rng(seed)
    is_first = np.zeros((T, B), bool)
    is_first[0, 1] = is_first[3, 0] = is_first[4, 0] = True
    return dict(
        start=RSSMState(
            rng.uniform(-1, 1, (B, D)).astype(np.float32),
            np.eye(C, dtype=np.float32)[rng.integers(0, C, (B, S))].reshape(B, S * C),
        ),
        prev_action=(2 * rng.standard_normal((T, B, config.action_dim))).astype(np.float32),
        embedding=rng.standard_normal((T, B, config.units)).astype(np.float32),
        is_first=is_first,
        noise=rng.random((T, B, S)).astype(np.float32),
    )

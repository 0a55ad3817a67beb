"""Named sets of defaults."""

from wm_collect.protocol import Protocol

PROTOCOLS: dict[str, Protocol] = {
    "paper": Protocol(summary="the paper's hyperparameters"),
    "dmc-proprio-paper": Protocol(
        summary="the paper's DeepMind Control protocol from proprioception, for Playground tasks",
        settings={
            "n_envs": 16,
            "model_size": "12m",
            "train_ratio": 512.0,
            "action_repeat": 2,
            "episode_length": 1_000,
        },
        run={"n_timesteps": 250_000, "eval_frequency": 25_000},
    ),
    "quick": Protocol(
        summary="small networks, short sequences and a large step size, for a first look on a CPU",
        settings={
            "n_envs": 4,
            "model_size": "1m",
            "units": 32,
            "deter": 128,
            "hidden": 32,
            "stoch": 16,
            "classes": 8,
            "batch_length": 32,
            "train_ratio": 256.0,
            "learning_rate": 1e-3,
            "warmup": 100,
        },
        run={"n_timesteps": 8_000, "eval_frequency": 4_000, "log_frequency": 500},
    ),
}

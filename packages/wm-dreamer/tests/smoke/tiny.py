"""The smallest settings that exercise everything."""

TINY = {
    "model_size": "1m",
    "units": 16,
    "deter": 32,
    "hidden": 16,
    "stoch": 4,
    "classes": 4,
    "blocks": 4,
    "enc_layers": 1,
    "dec_layers": 1,
    "actor_layers": 1,
    "critic_layers": 1,
    "bins": 41,
    "n_envs": 2,
    "batch_size": 4,
    "batch_length": 8,
    "imag_horizon": 3,
    "train_ratio": 16,
    "warmup": 4,
}

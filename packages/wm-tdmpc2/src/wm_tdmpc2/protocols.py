"""Named sets of defaults."""

from wm_collect.protocol import Protocol

PROTOCOLS: dict[str, Protocol] = {
    "paper": Protocol(summary="the paper's hyperparameters"),
    "dmc-paper": Protocol(
        summary="the paper's DeepMind Control protocol, for Playground tasks",
        settings={"model_size": 5, "action_repeat": 2, "episode_length": 1_000},
        run={"n_timesteps": 2_000_000, "eval_frequency": 50_000},
    ),
    "quick": Protocol(
        summary="small networks and a smaller planner, for a first look on a CPU",
        settings={
            "model_size": 1,
            "enc_dim": 64,
            "mlp_dim": 128,
            "latent_dim": 64,
            "num_samples": 256,
        },
        run={"n_timesteps": 3_000, "eval_frequency": 1_000, "log_frequency": 200},
    ),
}

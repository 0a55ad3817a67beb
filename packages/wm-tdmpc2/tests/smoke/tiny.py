"""The smallest settings that exercise everything."""

TINY = {
    "model_size": 1,
    "enc_dim": 16,
    "mlp_dim": 32,
    "latent_dim": 16,
    "batch_size": 32,
    "num_samples": 24,
    "num_elites": 6,
    "num_pi_trajs": 4,
    "iterations": 3,
}

"""wm_numerics."""

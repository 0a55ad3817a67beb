"""wm_tdmpc2."""

"""wm_multitask."""

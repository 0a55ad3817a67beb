"""wm_collect."""

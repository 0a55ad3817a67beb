"""wm_dreamer."""

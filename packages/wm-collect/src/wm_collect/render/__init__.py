"""From a recorded episode to an animation.

`evaluate_policy(..., record=True)` returns the trajectory of one episode, `render_episode` draws
it as a list of frames, and `save_animation` writes them as a GIF or an MP4. Classic control tasks
are drawn by a few matplotlib shapes, Brax and Playground tasks by MuJoCo's off-screen renderer
where one works, and everything else as curves of its observations and rewards, so that every
environment has an animation.
"""

from wm_collect.render.animation import save_animation
from wm_collect.render.episode import render_episode

__all__ = ["render_episode", "save_animation"]

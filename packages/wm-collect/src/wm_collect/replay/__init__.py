"""Replay buffers: rings of rows on the device, written in place, sampled by pure functions."""

from wm_collect.replay.episodes import Batch, EpisodeBuffer, EpisodeBufferState, SliceDraw
from wm_collect.replay.stream import StreamBatch, StreamReplay, StreamReplayState, WindowDraw

__all__ = [
    "Batch",
    "EpisodeBuffer",
    "EpisodeBufferState",
    "SliceDraw",
    "StreamBatch",
    "StreamReplay",
    "StreamReplayState",
    "WindowDraw",
]

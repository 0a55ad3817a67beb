"""Replay buffers: rings of rows on the device, written in place, sampled by pure functions."""

from wm_collect.replay.episodes import Batch, EpisodeBuffer, EpisodeBufferState, SliceDraw
from wm_collect.replay.stream import StreamBatch, StreamReplay, StreamReplayState, WindowDraw
from wm_collect.replay.variable_episodes import (
    EpisodicBatch,
    VariableEpisodeBuffer,
    VariableEpisodeBufferState,
    VariableSliceDraw,
)

__all__ = [
    "Batch",
    "EpisodeBuffer",
    "EpisodeBufferState",
    "EpisodicBatch",
    "SliceDraw",
    "StreamBatch",
    "StreamReplay",
    "StreamReplayState",
    "VariableEpisodeBuffer",
    "VariableEpisodeBufferState",
    "VariableSliceDraw",
    "WindowDraw",
]

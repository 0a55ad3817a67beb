"""Captions, and files of moving pictures."""

import contextlib
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from wm_collect.render.canvas import ACCENT, INK, MUTED

_CAPTION_HEIGHT = 56


def add_caption(
    picture: np.ndarray, left: tuple[str, str], right: tuple[str, str], progress: float
) -> np.ndarray:
    """Return a picture with two lines of text and a progress bar below it.

    Args:
        picture: uint8 `[height, width, 3]`.
        left: the two texts at the left.
        right: the two texts at the right.
        progress: share of the episode that has passed, in [0, 1].

    Returns:
        The frame, uint8 `[height + 56, width, 3]`.
    """
    height, width, _ = picture.shape
    frame = Image.new("RGB", (width, height + _CAPTION_HEIGHT), "#ffffff")
    frame.paste(Image.fromarray(picture), (0, 0))
    pen = ImageDraw.Draw(frame)
    pen.rectangle((0, height, width, height + 2), fill=MUTED)
    pen.rectangle((0, height, round(width * min(progress, 1.0)), height + 2), fill=ACCENT)
    font = ImageFont.load_default(size=max(9, min(15, width // 30)))
    for line in range(2):
        middle = height + 3 + (_CAPTION_HEIGHT - 3) * (0.3 + 0.4 * line)
        pen.text((12, middle), left[line], fill=INK, font=font, anchor="lm")
        pen.text((width - 12, middle), right[line], fill=INK, font=font, anchor="rm")
    return np.array(frame)


def save_animation(
    frames: Sequence[np.ndarray], path: str | os.PathLike[str], fps: float = 30.0
) -> Path:
    """Write frames as an animation; the file's ending chooses the format.

    Args:
        frames: uint8 `[height, width, 3]`, all of one size.
        path: ends in `.gif`, or in `.mp4` with the extra `wm-collect[video]`.
        fps: frames per second. A GIF counts time in hundredths of a second and most viewers show
            at most 50 frames per second.

    Returns:
        The path written.

    Raises:
        ModuleNotFoundError: an MP4 was asked for without the extra.
        RuntimeError: the video encoder failed.
        ValueError: there are no frames, they differ in size, or the ending is unknown.
    """
    path = Path(path)
    if not frames:
        raise ValueError("There are no frames to save.")
    if len({frame.shape for frame in frames}) > 1:
        shapes = sorted({frame.shape for frame in frames})
        raise ValueError(f"All frames of an animation must have one size, got {shapes}.")
    if fps <= 0:
        raise ValueError(f"fps must be positive, got {fps}.")
    ending = path.suffix.lower()
    if ending not in (".gif", ".mp4"):
        raise ValueError(
            f"The animation {path.name!r} must end in .gif or .mp4, which chooses its format."
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    if ending == ".gif":
        _save_gif(frames, path, fps)
    else:
        _save_mp4(frames, path, fps)
    return path


def _save_gif(frames: Sequence[np.ndarray], path: Path, fps: float) -> None:
    # One palette for all frames, taken from a few of them: fast, small, and nothing flickers.
    samples = np.concatenate(list(frames[:: max(1, len(frames) // 8)]))
    palette = Image.fromarray(samples).quantize(255, method=Image.Quantize.MEDIANCUT)
    images = [
        Image.fromarray(frame).quantize(palette=palette, dither=Image.Dither.NONE)
        for frame in frames
    ]
    duration = max(20, 10 * round(100 / fps))
    images[0].save(path, save_all=True, append_images=images[1:], duration=duration, loop=0)


def _save_mp4(frames: Sequence[np.ndarray], path: Path, fps: float) -> None:
    try:
        import imageio_ffmpeg
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"Writing {path.name!r} needs the package {error.name!r}, which is not installed; "
            f'install it with: pip install "wm-collect[video]", or save a .gif instead.'
        ) from error
    height, width, _ = frames[0].shape
    # Video codecs need even sizes.
    odd = ((0, height % 2), (0, width % 2), (0, 0))
    size = f"{width + width % 2}x{height + height % 2}"
    # imageio-ffmpeg's own writer forks, of which JAX warns; it is used to find the program only.
    command = [imageio_ffmpeg.get_ffmpeg_exe(), "-y", "-loglevel", "error"]
    command += ["-f", "rawvideo", "-pix_fmt", "rgb24", "-s", size, "-r", str(fps), "-i", "-"]
    command += ["-an", "-c:v", "libx264", "-crf", "20", "-pix_fmt", "yuv420p", str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE) as encoder:
        assert encoder.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # its own message, below, says more
            for frame in frames:
                encoder.stdin.write(np.pad(frame, odd, "edge").tobytes())
        _, message = encoder.communicate()
    if encoder.returncode:
        raise RuntimeError(f"ffmpeg could not write {path}: {message.decode().strip()}")

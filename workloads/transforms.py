"""Input transforms of image batches, on the device of the images.

Each takes images [n, C, H, W] and returns new ones; the input is not changed. Generators live on
the images' device, and a transform draws the same amount of numbers for every input.

Legend: n samples, C channels, H height, W width.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from raysim.errors import SettingsError


def normalise(x: Tensor, mean: Sequence[float], std: Sequence[float]) -> Tensor:
    """Return (x - mean) / std, with one mean and one standard deviation for each channel.

    Args:
        x: Images [n, C, H, W], floating.
        mean: Means [C].
        std: Standard deviations [C], above 0.

    Raises:
        SettingsError: the images have another number of channels, or a deviation is not above 0.
    """
    channels = x.shape[1]
    if not len(mean) == len(std) == channels:
        raise SettingsError(
            f"normalise: {len(mean)} means and {len(std)} standard deviations for images of"
            f" {channels} channels; must be one of each per channel"
        )
    if not min(std) > 0:
        raise SettingsError(f"normalise: std={tuple(std)}: must be above 0")
    return (x - _per_channel(x, mean)) / _per_channel(x, std)


def pad(x: Tensor, size: int) -> Tensor:
    """Pad images with zeros to [n, C, size, size]; odd padding has its extra pixel at the end.

    Raises:
        SettingsError: the images are larger than `size`.
    """
    height, width = x.shape[2:]
    if size < max(height, width):
        raise SettingsError(
            f"pad: size={size} for images of {height}x{width} pixels: must be at least"
            f" {max(height, width)}"
        )
    top, left = (size - height) // 2, (size - width) // 2
    return F.pad(x, (left, size - width - left, top, size - height - top))


def random_crop(
    x: Tensor,
    padding: int,
    generator: torch.Generator,
    mode: Literal["constant", "reflect"] = "constant",
) -> Tensor:
    """Pad on each side and crop each sample at a random offset to its old size.

    Args:
        x: Images [n, C, H, W].
        padding: Pixels of padding on each side; the offsets are uniform on 0..2*padding.
        generator: Source of the offsets.
        mode: Padding with zeros, or with the image reflected at its edge pixels.

    Raises:
        SettingsError: the padding is negative.
    """
    if padding < 0:
        raise SettingsError(f"random_crop: padding={padding}: must be at least 0")
    n, _, height, width = x.shape
    down, right = torch.randint(
        2 * padding + 1, (2, n), generator=generator, device=x.device
    )  # [n] each
    # A view of all windows of the padded images; indexing copies the selected ones only.
    windows = F.pad(x, (padding,) * 4, mode).unfold(2, height, 1).unfold(3, width, 1)
    return windows[torch.arange(n, device=x.device), :, down, right]  # [n, C, H, W]


def random_flip(x: Tensor, generator: torch.Generator) -> Tensor:
    """Mirror each sample left to right with probability 1/2.

    Args:
        x: Images [n, C, H, W].
        generator: Source of the choices.
    """
    mirrored = torch.rand(len(x), generator=generator, device=x.device) < 0.5
    return torch.where(mirrored[:, None, None, None], x.flip(-1), x)


def _per_channel(x: Tensor, values: Sequence[float]) -> Tensor:
    return x.new_tensor(list(values))[:, None, None]  # [C, 1, 1]

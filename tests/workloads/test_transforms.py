"""Input transforms against loops over samples, channels and pixels."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from raysim.errors import SettingsError
from raysim.workloads.transforms import normalise, pad, random_crop, random_flip

N, C, H, W = 40, 3, 5, 7
RANDOM: dict[str, Callable[[Tensor, torch.Generator], Tensor]] = {
    "random_crop": lambda x, generator: random_crop(x, 2, generator),
    "random_flip": random_flip,
}


def images(count: int = N) -> Tensor:
    """Images without a zero and without two equal values, so that every place is known."""
    return torch.arange(1.0, 1 + count * C * H * W).reshape(count, C, H, W)


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def window(image: np.ndarray, padding: int, down: int, right: int) -> np.ndarray:
    """Cut one window pixel by pixel; outside of the image is zero."""
    out = np.zeros_like(image)
    for row in range(H):
        for column in range(W):
            y, x = row + down - padding, column + right - padding
            if 0 <= y < H and 0 <= x < W:
                out[:, row, column] = image[:, y, x]
    return out


def test_normalise_subtracts_the_mean_of_each_channel_and_divides_by_its_deviation():
    x = torch.rand(N, C, H, W, generator=seeded())
    mean, std = (0.1, 0.2, 0.3), (0.5, 0.25, 2.0)
    out = normalise(x, mean, std)
    for sample in range(N):
        for channel in range(C):
            expected = (x[sample, channel].numpy() - mean[channel]) / std[channel]
            np.testing.assert_allclose(out[sample, channel].numpy(), expected, rtol=1e-6, atol=1e-6)
    assert out.dtype == x.dtype


def test_normalise_of_known_pixels():
    x = torch.tensor([0.0, 1.0]).reshape(1, 1, 1, 2)
    out = normalise(x, (0.1307,), (0.3081,))
    assert out.flatten().tolist() == pytest.approx([-0.42421290, 2.82148653], rel=1e-6)


@pytest.mark.parametrize(("mean", "std"), [((0.1,), (0.3,)), ((0.1,) * 3, (0.3,) * 2)])
def test_normalise_refuses_other_channels(mean, std):
    with pytest.raises(SettingsError, match=r"normalise: \d means .* images of 3 channels"):
        normalise(images(), mean, std)


def test_normalise_refuses_no_deviation():
    with pytest.raises(SettingsError, match=r"normalise: std=\(1.0, 0.0, 1.0\): must be above 0"):
        normalise(images(), (0.0,) * 3, (1.0, 0.0, 1.0))


@pytest.mark.parametrize(("size", "top", "left"), [(7, 1, 0), (8, 1, 0), (11, 3, 2), (12, 3, 2)])
def test_pad_puts_zeros_around(size, top, left):
    x = images()
    expected = np.zeros((N, C, size, size), dtype=np.float32)
    for sample in range(N):
        expected[sample, :, top : top + H, left : left + W] = x[sample]
    np.testing.assert_array_equal(pad(x, size).numpy(), expected)


def test_pad_refuses_a_smaller_size():
    with pytest.raises(
        SettingsError, match=r"pad: size=6 for images of 5x7 pixels: must be at least 7"
    ):
        pad(images(), 6)


def test_crop_cuts_one_window_per_sample():
    x, padding = images(), 2
    out = random_crop(x, padding, seeded()).numpy()
    for sample in range(N):
        fits = [
            (down, right)
            for down in range(2 * padding + 1)
            for right in range(2 * padding + 1)
            if np.array_equal(out[sample], window(x[sample].numpy(), padding, down, right))
        ]
        assert len(fits) == 1


def test_crop_offsets_are_uniform_and_independent():
    # A lit centre in a 5x5 image shows the offset that a sample was given.
    x = torch.zeros(25_000, 1, 5, 5)
    x[:, :, 2, 2] = 1
    counts = random_crop(x, 2, seeded()).sum((0, 1))  # [5, 5]
    assert counts.sum() == 25_000
    # Binomial(25000, 1/25): mean 1000, standard deviation 31.
    assert (counts - 1000).abs().max() < 5 * 31


def test_crop_without_padding_changes_nothing():
    assert torch.equal(random_crop(images(), 0, seeded()), images())


def test_crop_refuses_a_negative_padding():
    with pytest.raises(SettingsError, match="padding=-1: must be at least 0"):
        random_crop(images(), -1, seeded())


def test_flip_mirrors_whole_samples():
    x = images()
    out = random_flip(x, seeded())
    mirrored = []
    for before, after in zip(x.numpy(), out.numpy(), strict=True):
        mirror = np.stack([[row[::-1] for row in channel] for channel in before])
        mirrored.append(np.array_equal(after, mirror))
        assert mirrored[-1] or np.array_equal(after, before)
    assert 0 < sum(mirrored) < N


def test_flip_has_probability_one_half():
    x = torch.tensor([0.0, 1.0]).expand(10_000, 1, 1, 2)
    share = random_flip(x, seeded())[..., 0].mean().item()
    assert share == pytest.approx(0.5, abs=5 * 0.005)  # standard deviation 0.005


@pytest.mark.parametrize("name", RANDOM)
def test_seeds_reproduce_and_each_call_draws_anew(name):
    transform, x = RANDOM[name], images()
    generator = seeded(3)
    first, second = transform(x, generator), transform(x, generator)
    assert torch.equal(transform(x, seeded(3)), first)
    assert not torch.equal(second, first)
    assert not torch.equal(transform(x, seeded(4)), first)


@pytest.mark.parametrize("name", RANDOM)
def test_draws_come_from_the_generator_alone(name):
    before = torch.get_rng_state()
    RANDOM[name](images(), seeded())
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize(
    "transform",
    [
        lambda x: normalise(x, (0.5,) * 3, (0.5,) * 3),
        lambda x: pad(x, 9),
        lambda x: random_crop(x, 2, seeded()),
        lambda x: random_flip(x, seeded()),
    ],
    ids=["normalise", "pad", "random_crop", "random_flip"],
)
def test_inputs_are_left_as_they_are_and_one_or_no_sample_works(transform):
    x = images()
    out = transform(x)
    assert torch.equal(x, images())
    out.add_(1)  # the result is memory of its own
    assert torch.equal(x, images())
    assert len(transform(images(1))) == 1
    assert len(transform(images(0))) == 0

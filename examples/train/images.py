"""A small convolutional net that tells circles, squares, crosses and stripes apart in noisy pictures."""

import torch

SIZE = 32


class Block(torch.nn.Module):
    """Two convolutions with BatchNorm around a shortcut, as in a ResNet."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.first = torch.nn.Conv2d(before, after, 3, stride, 1, bias=False)
        self.first_norm = torch.nn.BatchNorm2d(after)
        self.second = torch.nn.Conv2d(after, after, 3, 1, 1, bias=False)
        self.second_norm = torch.nn.BatchNorm2d(after)
        self.shortcut = torch.nn.Sequential(
            torch.nn.Conv2d(before, after, 1, stride, bias=False), torch.nn.BatchNorm2d(after)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.relu(self.first_norm(self.first(x)))
        return torch.relu(self.second_norm(self.second(y)) + self.shortcut(x))


class Task:
    """Which of four figures is it?"""

    def model(self) -> torch.nn.Module:
        return torch.nn.Sequential(
            Block(1, 16, 1),
            Block(16, 32, 2),
            Block(32, 64, 2),
            torch.nn.AdaptiveAvgPool2d(1),
            torch.nn.Flatten(),
            torch.nn.Linear(64, 4),
        )

    def batch(self, random: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
        count = 64
        figure = torch.randint(4, (count,), generator=random)
        centre = torch.rand(count, 2, 1, 1, generator=random) * SIZE / 2 + SIZE / 4
        radius = torch.rand(count, 1, 1, generator=random) * SIZE / 8 + SIZE / 8
        rows, columns = torch.meshgrid(torch.arange(SIZE), torch.arange(SIZE), indexing="ij")
        down, right = (rows - centre[:, 0]).abs(), (columns - centre[:, 1]).abs()
        square = torch.maximum(down, right) < radius
        figures = torch.stack(
            [
                down**2 + right**2 < radius**2,
                square,
                square & (torch.minimum(down, right) < 2),
                square & (rows % 4 < 2),
            ]
        )
        picture = figures[figure, torch.arange(count)].float()[:, None]
        return picture + torch.randn(picture.shape, generator=random) / 2, figure

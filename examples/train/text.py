"""A small transformer that learns to write like this repository's documentation, letter by letter."""

from pathlib import Path

import torch

CONTEXT = 128
REPOSITORY = Path(__file__).resolve().parents[2]


class Model(torch.nn.Module):
    """PyTorch's own encoder layers, with a causal mask."""

    def __init__(self, letters: int, width: int = 128, layers: int = 4, heads: int = 4) -> None:
        super().__init__()
        self.letters = torch.nn.Embedding(letters, width)
        self.positions = torch.nn.Embedding(CONTEXT, width)
        layer = torch.nn.TransformerEncoderLayer(
            width, heads, 4 * width, dropout=0.0, batch_first=True, norm_first=True
        )
        self.encoder = torch.nn.TransformerEncoder(
            layer, layers, norm=torch.nn.LayerNorm(width), enable_nested_tensor=False
        )
        self.head = torch.nn.Linear(width, letters)

    def forward(self, text: torch.Tensor) -> torch.Tensor:
        h = self.letters(text) + self.positions.weight
        mask = torch.nn.Transformer.generate_square_subsequent_mask(CONTEXT, device=text.device)
        return self.head(self.encoder(h, mask=mask, is_causal=True))


class Task:
    """Predict the next letter of the documentation."""

    def __init__(self) -> None:
        pages = [REPOSITORY / "README.md", *sorted((REPOSITORY / "docs").glob("*.md"))]
        text = "".join(page.read_text(encoding="utf-8") for page in pages)
        letters = {letter: number for number, letter in enumerate(sorted(set(text)))}
        self.text = torch.tensor([letters[letter] for letter in text])
        self.size = len(letters)

    def model(self) -> torch.nn.Module:
        return Model(self.size)

    def batch(self, random: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
        starts = torch.randint(len(self.text) - CONTEXT, (16, 1), generator=random)
        pieces = self.text[starts + torch.arange(CONTEXT + 1)]
        return pieces[:, :-1], pieces[:, 1:]

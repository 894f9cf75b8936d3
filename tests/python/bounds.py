"""The bounds of docs/numerics.md, against PyTorch's float64 autograd:

    |out - ref| <= u_o |ref| + eta_o + K u S

S is the sum of the absolute values of the terms that an element is made of. Those bounds take the
statistics as given; PyTorch's float64 autograd takes exact ones. What the forward pass saves is
rounded once to float32, mean by u |mean| and r by u r, so x_hat moves by u (|mean| r + |x_hat|):
what that does to each gradient, to first order, is added. So are a few roundings to float64 in the
reference itself, which show where x is nearly its row's mean.
"""

from __future__ import annotations

from typing import Optional

import torch
import torch.nn.functional as F
from torch import Tensor

U = 2.0**-24
ROUNDOFF = {torch.float32: 2.0**-24, torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8}
ETA = {torch.float32: 2.0**-150, torch.float16: 2.0**-25, torch.bfloat16: 2.0**-134}
FACTORS = {"y": 8, "dx": 12, "dgamma": 35, "dbeta": 31}


def check(name: str, out: Tensor, ref: Tensor, terms: Tensor) -> None:
    assert out.shape == ref.shape, f"{name}: {tuple(out.shape)} instead of {tuple(ref.shape)}"
    assert not out.isnan().any(), f"{name}: NaN"
    error = (out.detach().double() - ref).abs()
    bound = ROUNDOFF[out.dtype] * ref.abs() + ETA[out.dtype] + U * terms
    worst = (error / bound).max().item() if out.numel() else 0.0
    assert worst <= 1, f"{name}: {worst:.3g} times the bound"


class Reference:
    """y and the gradients in float64, and the terms of each. ``channels``: BatchNorm, axis 1."""

    def __init__(
        self,
        x: Tensor,
        dy: Tensor,
        gamma: Optional[Tensor] = None,
        beta: Optional[Tensor] = None,
        eps: float = 1e-5,
        *,
        rms: bool = False,
        channels: bool = False,
        running: Optional[tuple[Tensor, Tensor]] = None,
        offset: float = 0.0,
        dh: Optional[Tensor] = None,
    ) -> None:
        size = x.shape[1] if channels else x.shape[-1]
        x = x.detach().double().requires_grad_()
        dy = dy.detach().double()
        g = torch.ones(size, dtype=torch.float64) if gamma is None else gamma.detach().double()
        g = (g + offset).requires_grad_()
        b = torch.zeros(size, dtype=torch.float64) if beta is None else beta.detach().double()
        b.requires_grad_()
        if channels:
            mean, variance = (None, None) if running is None else (s.double() for s in running)
            y = F.batch_norm(x, mean, variance, g, b, running is None, 0.0, eps)
        elif rms:
            y = F.rms_norm(x, (size,), g, eps)
        else:
            y = F.layer_norm(x, (size,), g, b, eps)
        self.y = y.detach()
        self.dx, self.dgamma, dbeta = torch.autograd.grad(y, (x, g, b), dy, allow_unused=True)
        if dh is not None:
            self.dx = self.dx + dh.double()
        with torch.no_grad():
            self._terms(x, dy, g, b, eps, rms, channels, running, dh)
        self.dbeta = torch.zeros_like(b) if dbeta is None else dbeta

    def _terms(self, x, dy, g, b, eps, rms, channels, running, dh):  # type: ignore
        inner = [0, *range(2, x.dim())] if channels else [x.dim() - 1]
        outer = inner if channels else list(range(x.dim() - 1))
        if channels:
            g, b = (v.view(1, -1, *(1,) * (x.dim() - 2)) for v in (g, b))
        average = lambda t: t.mean(inner, keepdim=True)  # noqa: E731
        mean = torch.zeros_like(average(x)) if rms else average(x)
        variance = average((x - mean).square())
        if running is not None:
            mean, variance = (s.double().view_as(mean) for s in running)
        r = (variance + eps).rsqrt()
        x_hat = (x - mean) * r
        gradient = dy * g
        reference = 2.0**-24 * (x.abs() + mean.abs()) * r
        moved = mean.abs() * r + x_hat.abs() + reference
        total = (lambda t: t.sum(outer)) if outer else (lambda t: t)
        self.y_terms = (x_hat * g).abs() + b.abs()
        self.y_moved = reference * g.abs()
        self.dbeta_moved = 0.0
        self.dgamma_moved = total(dy.abs() * moved) if running is None else 0.0
        self.dx_moved = 0.0
        if running is None:
            c = average(gradient * x_hat).abs()
            self.dx_moved = self.dx.abs() + r * (
                moved * c + x_hat.abs() * average(gradient.abs() * moved)
            )
        self.dx_terms = r * gradient.abs()
        if running is None:
            self.dx_terms += r * x_hat.abs() * average((gradient * x_hat).abs())
            if not rms:
                self.dx_terms += r * average(gradient.abs())
        if dh is not None:
            self.dx_terms += dh.double().abs()
        self.dgamma_terms = total((dy * x_hat).abs())
        self.dbeta_terms = total(dy.abs())

    def check(self, **got: Optional[Tensor]) -> None:
        for name, out in got.items():
            if out is not None:
                terms = FACTORS[name] * getattr(self, f"{name}_terms")
                check(name, out, getattr(self, name), terms + getattr(self, f"{name}_moved"))

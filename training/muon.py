"""Muon for matrices, AdamW for everything else.

A matrix moves along the orthogonal factor of its momentum (Jordan et al. 2024: five Newton-Schulz steps with the
coefficients 3.4445, -4.7750, 2.0315), scaled by 0.2 sqrt(max(rows, columns)) so that a step is as large as one of AdamW
(Liu et al. 2025) and both share one learning rate.
"""

import math
import torch


def orthogonal(g):
    """g [N, r, c] -> about U V^T of each matrix's singular value decomposition."""
    x = g.bfloat16() if g.is_cuda else g
    tall = x.shape[1] > x.shape[2]
    x = x.mT if tall else x
    x = x / (x.norm(dim=(1, 2), keepdim=True) + 1e-7)
    for _ in range(5):
        a = x @ x.mT
        x = 3.4445 * x + (-4.7750 * a + 2.0315 * a @ a) @ x
    return (x.mT if tall else x).to(g.dtype)


class Muon:
    """params: matrices [r, c] or stacks of matrices [n, r, c]."""

    def __init__(self, params, momentum=0.95, decay=0.03):
        self.groups, self.momentum, self.decay = {}, momentum, decay
        for p in params:
            self.groups.setdefault(tuple(p.shape[-2:]), []).append(p)
        self.velocity = {
            s: torch.zeros(sum(p.numel() for p in ps) // math.prod(s), *s, device=ps[0].device)
            for s, ps in self.groups.items()
        }

    @torch.no_grad()
    def step(self, lr):
        for shape, ps in self.groups.items():
            g, v = torch.cat([p.grad.reshape(-1, *shape) for p in ps]), self.velocity[shape]
            v.lerp_(g, 1 - self.momentum)
            u = orthogonal(g.lerp(v, self.momentum)) * (-lr * 0.2 * math.sqrt(max(shape)))
            parts = u.split([p.numel() // math.prod(shape) for p in ps])
            torch._foreach_mul_(ps, 1 - lr * self.decay)
            torch._foreach_add_(ps, [d.reshape(p.shape) for d, p in zip(parts, ps)])

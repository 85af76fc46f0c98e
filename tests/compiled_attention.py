"""Compile an attention module in this process, and print how far its output and gradients are from plain ones."""

import sys

import torch
from conftest import LAYERS

from hybrid_attention import BoltzmannAttention

torch.manual_seed(0)
attention = BoltzmannAttention(4, LAYERS[sys.argv[1]](3, 2))
if attention.layer.couplings is not None:
    torch.nn.init.normal_(attention.layer.couplings, 0.1, 0.5)
x = torch.randn(2, 3, 4)


def run(module):
    attention.zero_grad()
    out = module(x)
    out.square().sum().backward()
    return [out.detach().clone(), *(parameter.grad.clone() for parameter in attention.parameters())]


plain = run(attention)
compiled = run(torch.compile(attention))
print(max(float((ours - theirs).abs().max()) for ours, theirs in zip(compiled, plain, strict=True)))

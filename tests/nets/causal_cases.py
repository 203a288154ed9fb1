"""Causal nets, and what is asked of all of them."""

import torch
from torch.func import functional_call, stack_module_state

from weft.nets import DilatedConvolutions, Recurrent, Transformer

NETS = {
    "rnn": lambda: Recurrent(3, 2, kind="rnn", layers=2, width=6),
    "lstm": lambda: Recurrent(3, 2, kind="lstm", layers=2, width=6),
    "gru": lambda: Recurrent(3, 2, kind="gru", width=6),
    "transformer": lambda: Transformer(3, 2, context=9, layers=2, heads=2, width=8),
    "transformer, rotary": lambda: Transformer(8, 2, layers=2, heads=2, width=8, positions="rotary", bias=False),
    "convolutions": lambda: DilatedConvolutions(3, 2, width=5, layers=3),
    "convolutions, wide": lambda: DilatedConvolutions(3, 2, width=5, layers=2, kernel=3, stacks=2),
}
STEPS = 9


def made(name, seed=0):
    """A net with weights large enough to matter, and rows for it."""
    torch.manual_seed(seed)
    net = NETS[name]().double().eval()
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return net, torch.randn(4, STEPS, 8 if "rotary" in name else 3, dtype=torch.float64)


def leaks(net, x):
    """By output and input step: the largest gradient."""
    x = x.clone().requires_grad_()
    answer = net(x)
    slopes = [torch.autograd.grad(answer[:, t].sum(), x, retain_graph=True)[0].abs().amax((0, 2)) for t in range(STEPS)]
    return torch.stack(slopes)


def stepwise(net, x):
    kept = net.begin(x[:, 0], STEPS)
    return torch.stack([net.advance(step, kept) for step in x.unbind(1)], 1)


def stacked(nets, x, of=lambda net, x: net(x)):
    """What each of several nets answers, all at once by vmap."""
    params, _ = stack_module_state(nets)

    class Asked(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.net = nets[0]

        def forward(self, x):
            return of(self.net, x + 0 * next(self.net.parameters()).sum())

    asked = Asked()
    named = {f"net.{name}": value for name, value in params.items()}
    return torch.vmap(lambda own: functional_call(asked, own, (x,)))(named)

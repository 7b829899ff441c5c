"""The quantized network, in which weights with a codebook are replaced by code words."""

import copy
import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from guides.base import Guide
from guides.quantized import QuantizedGuide
from zoo.infer.predict.draws import slots_of
from zoo.infer.pruning.groups import guide_parts
from zoo.infer.pruning.moments import CodebookPrior
from zoo.network.bnn import BNN


@dataclass(frozen=True)
class QuantizedView:
    """The quantized weights of a fit.

    ``means`` are the posterior medians of all slots, the network before quantization; ``codes`` the
    quantized weights of the slots with a codebook; ``codebooks`` their code words.
    """

    means: Mapping[str, Tensor]
    codes: Mapping[str, Tensor]
    codebooks: Mapping[str, Tensor]

    @property
    def values(self) -> dict[str, Tensor]:
        """Every slot of the quantized network."""
        return {**self.means, **self.codes}

    @property
    def nonzero_percent(self) -> float:
        """Percentage of nonzero quantized weights."""
        nonzero = sum(int(code.count_nonzero()) for code in self.codes.values())
        return 100.0 * nonzero / self._num_codes

    @property
    def bits(self) -> float:
        """Bits per quantized weight, stored as the index of its code word."""
        bits = {name: math.ceil(math.log2(len(words))) for name, words in self.codebooks.items()}
        return sum(code.numel() * bits[n] for n, code in self.codes.items()) / self._num_codes

    @property
    def _num_codes(self) -> int:
        return sum(code.numel() for code in self.codes.values())

    def network(self, net: nn.Module) -> nn.Module:
        """Return a copy of a network with these weights."""
        quantized = copy.deepcopy(net)
        with torch.no_grad():
            for name, value in self.values.items():
                if name != "noise":  # a parameter of the likelihood
                    quantized.get_parameter(name).copy_(value)
        return quantized.eval()


@torch.no_grad()
def quantized_view(model: BNN, guide: Guide) -> QuantizedView | None:
    """Return the quantized weights of a fit, or None if no slot has a codebook."""
    codes, codebooks = {}, {}
    for name, part in guide_parts(guide).items():
        prior: object = model.prior(name)
        if isinstance(prior, CodebookPrior) and isinstance(part, QuantizedGuide):
            codebooks[name] = prior.code_words().detach().clone()
            codes[name] = prior.quantized(part).detach()
    if not codes:
        return None
    sites = {name: value.unsqueeze(0) for name, value in guide.medians().items()}
    means = {name: value.squeeze(0) for name, value in slots_of(model, sites).items()}
    return QuantizedView(means, codes, codebooks)

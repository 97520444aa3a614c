"""Mixed precision: autocast, and for float16 a scale that keeps small gradients from vanishing."""

from __future__ import annotations

from typing import Any

import torch

from datapipe.errors import OptionError

_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


class MixedPrecision:
    """What stands between a loss and an optimiser's step. Weights and optimiser stay float32.

    With "fp16" the loss is multiplied by a scale, gradients are divided by it, and a step whose gradients are not finite is
    left out and the scale lowered (Micikevicius et al., "Mixed Precision Training", 2018). Raises OptionError where the
    device cannot do it.
    """

    def __init__(self, name: str, device: torch.device) -> None:
        if name not in ("fp32", *_DTYPES):
            raise OptionError(f"precision is {name!r}; choose one of fp32, {', '.join(_DTYPES)}")
        if name == "bf16" and device.type == "cuda" and not torch.cuda.is_bf16_supported(including_emulation=False):
            raise OptionError(f"precision is 'bf16', which {torch.cuda.get_device_name(device)} does not have; choose 'fp16'")
        self.name = name
        self._device_type = device.type
        self._scaler = torch.amp.GradScaler(device.type, enabled=name == "fp16")

    def autocast(self) -> torch.autocast:
        """The context of forward pass and loss."""
        dtype = _DTYPES.get(self.name)
        return torch.autocast(self._device_type, dtype=dtype, enabled=dtype is not None)

    def backward(self, loss: torch.Tensor) -> None:
        """Add the gradients of `loss`, scaled."""
        self._scaler.scale(loss).backward()  # type: ignore[no-untyped-call]

    def unscale(self, optimizer: torch.optim.Optimizer) -> None:
        """Divide the gradients by the scale, before anything looks at them."""
        self._scaler.unscale_(optimizer)

    def step(self, optimizer: torch.optim.Optimizer) -> None:
        """Change the weights, unless the gradients are not finite; adapt the scale."""
        self._scaler.step(optimizer)
        self._scaler.update()

    def state_dict(self) -> dict[str, Any]:
        """Empty but for "fp16"."""
        return self._scaler.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """An empty state, saved in another precision, leaves the scale as it is."""
        if state and self.name == "fp16":
            self._scaler.load_state_dict(state)

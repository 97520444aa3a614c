"""Gradients are those of one large batch, however it is cut, masked, rounded or computed again."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from networks import network
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from datapipe.errors import OptionError
from datapipe.training import Learner, ends_step, make_model, recompute_blocks
from datapipe.training.learner import LabelledBatch, cross_entropy, labelled_batch
from datapipe.training.options import Precision
from datapipe.training.process_group import ProcessGroup

CPU = torch.device("cpu")


class NoStep(torch.optim.SGD):
    """Keeps the gradients that it is given, and changes nothing."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, lr=1.0)
        self.seen: list[torch.Tensor] = []

    def step(self, closure: Any = None) -> None:
        self.seen = [parameter.grad.clone() for group in self.param_groups for parameter in group["params"]]


def samples(num: int, *, size: int = 32) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(5)
    images = torch.randn(num, 3, size, size, generator=generator)
    return images, torch.randint(0, 4, (num,), generator=generator)


def gradients(
    model: nn.Module, batches: list[LabelledBatch], *, precision: Precision = "fp32", **arguments: Any
) -> list[torch.Tensor]:
    """Those that reach the optimiser."""
    optimizer = NoStep(model.parameters())
    learner = Learner(model, optimizer, precision=precision, **arguments)
    for number, batch in enumerate(batches):
        learner.learn(batch, ends_step=number + 1 == len(batches))
    learner.step()
    assert all(parameter.grad is None for parameter in model.parameters())
    return optimizer.seen


def reference(model: nn.Module, images: torch.Tensor, labels: torch.Tensor) -> list[torch.Tensor]:
    """Those of the mean over one large batch, by torch alone."""
    model = copy.deepcopy(model)
    nn.functional.cross_entropy(model(images), labels).backward()
    return [parameter.grad for parameter in model.parameters() if parameter.grad is not None]


def close(ours: list[torch.Tensor], theirs: list[torch.Tensor], tolerance: float = 1e-5) -> None:
    assert len(ours) == len(theirs)
    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, other, rtol=tolerance, atol=tolerance * float(other.abs().max()) + 1e-9)


@pytest.fixture(params=["cnn", "transformer"])
def model(request: pytest.FixtureRequest) -> nn.Module:
    torch.manual_seed(0)
    net = network(request.param, 4)
    with torch.no_grad():
        net.get_submodule("head").weight.normal_(0, 0.1)  # type: ignore[operator,union-attr]
    return net


@pytest.mark.parametrize("cuts", [[12], [4, 4, 4], [4, 4, 3, 1], [1, 11]], ids=str)
def test_accumulation_equals_the_large_batch(model: nn.Module, cuts: list[int]) -> None:
    """`nominal` is what a full step would have: 16 here, as if there were four batches of four."""
    images, labels = samples(12)
    parts = zip(images.split(cuts), labels.split(cuts), strict=True)
    ours = gradients(model, [LabelledBatch(*part, None) for part in parts], nominal=16)
    close(ours, reference(model, images, labels))


def test_masked_samples_do_not_count(model: nn.Module) -> None:
    images, labels = samples(12)
    real = torch.ones(12, dtype=torch.bool)
    real[7:] = False
    images[7:] = 100.0
    parts = zip(images.split(6), labels.split(6), real.split(6), strict=True)
    ours = gradients(model, [LabelledBatch(*part) for part in parts], nominal=12)
    close(ours, reference(model, images[:7], labels[:7]))


def test_no_sample_at_all_leaves_the_weights_alone() -> None:
    images, labels = samples(4)
    none = torch.zeros(4, dtype=torch.bool)
    assert all(not grad.any() for grad in gradients(make_model("cnn", 4), [LabelledBatch(images, labels, none)], nominal=4))


class _Operations(TorchDispatchMode):
    """Notes the names of torch's operations."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.add(func._schema.name.removeprefix("aten::"))
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("world_size", [1, 2])
@pytest.mark.parametrize("num", [4, 3])
def test_a_step_takes_no_number_to_the_device(num: int, world_size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """torch waits for the GPU, with all that is queued there, when it copies a tensor made of numbers."""
    monkeypatch.setattr(ProcessGroup, "add", lambda self, values: values.mul_(self.world_size))
    model = make_model("cnn", 4)
    optimizer = NoStep(model.parameters())
    learner = Learner(model, optimizer, nominal=4)
    learner._ranks = ProcessGroup(0, world_size)
    images, labels = samples(num)
    learner.learn(LabelledBatch(images, labels, None), ends_step=True)
    with _Operations() as operations:
        learner.step()
    assert not operations.names & {"lift_fresh", "_local_scalar_dense"}
    close(optimizer.seen, reference(model, images, labels))


def test_soft_labels_and_smoothing() -> None:
    outputs, labels = torch.randn(5, 4), torch.tensor([0, 1, 2, 3, 1])
    shares = nn.functional.one_hot(labels, 4).float()
    torch.testing.assert_close(cross_entropy(outputs, shares), cross_entropy(outputs, labels))
    smooth = cross_entropy(outputs, labels, label_smoothing=0.1)
    torch.testing.assert_close(smooth, cross_entropy(outputs, shares * 0.9 + 0.025))


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_mixed_precision_keeps_the_direction(precision: Precision) -> None:
    torch.manual_seed(0)
    model = make_model("cnn", 4)
    images, labels = samples(8)
    exact = reference(model, images, labels)
    ours = gradients(model, [LabelledBatch(images, labels, None)], precision=precision, nominal=8)
    assert all(grad.dtype == torch.float32 for grad in ours)
    one, other = torch.cat([grad.flatten() for grad in ours]), torch.cat([grad.flatten() for grad in exact])
    assert float(nn.functional.cosine_similarity(one, other, 0)) > 0.999
    assert float(one.norm() / other.norm()) == pytest.approx(1, abs=0.02)
    assert not torch.equal(one, other), "nothing was computed in lower precision"


def test_float16_leaves_out_a_step_that_overflows_and_lowers_the_scale() -> None:
    model = nn.Linear(4, 4)
    before = model.weight.clone()
    learner = Learner(
        model,
        torch.optim.SGD(model.parameters(), lr=1.0),
        criterion=lambda outputs, labels: outputs.float().sum(1) * float("inf"),
        precision="fp16",
        nominal=2,
        clip_norm=1.0,
    )
    learner.learn(LabelledBatch(torch.ones(2, 4), torch.zeros(2, dtype=torch.int64), None), ends_step=True)
    scale = learner.scaler.get_scale()
    learner.step()
    assert torch.equal(model.weight, before)
    assert learner.scaler.get_scale() == scale / 2


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_clipping(precision: Precision) -> None:
    """Of the gradient itself, not of one that is still scaled for float16."""
    batch = LabelledBatch(*samples(8), None)
    model = make_model("cnn", 4)
    free = torch.cat([grad.flatten() for grad in gradients(model, [batch], precision=precision, nominal=8)])
    clipped = gradients(model, [batch], precision=precision, nominal=8, clip_norm=float(free.norm()) / 2)
    torch.testing.assert_close(torch.cat([grad.flatten() for grad in clipped]), free / 2)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_recomputing_gives_the_same_gradients(model: nn.Module, precision: Precision) -> None:
    batch = LabelledBatch(*samples(6), None)
    names = list(model.state_dict())
    kept = gradients(model, [batch], precision=precision, nominal=6)
    again = copy.deepcopy(model)
    blocks = list(again.get_submodule("blocks").children())
    computed: list[int] = []
    next(blocks[0].children()).register_forward_hook(lambda *_: computed.append(1))
    assert recompute_blocks(again) == len(blocks)
    ours = gradients(again, [batch], precision=precision, nominal=6)
    assert len(computed) == 2, "the first block is computed once more for the backward pass"
    assert list(again.state_dict()) == names
    for mine, other in zip(ours, kept, strict=True):
        torch.testing.assert_close(mine, other, rtol=0, atol=0)
    again.eval()
    with torch.no_grad():
        again(batch.images)
    assert len(computed) == 3


class Normed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.drop = nn.Conv2d(3, 3, 3, padding=1), nn.BatchNorm2d(3), nn.Dropout(0.5)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.drop(self.norm(self.conv(images)))  # type: ignore[no-any-return]


@pytest.mark.parametrize("is_compiled", [False, True])
def test_recomputing_counts_a_batch_once_and_drops_the_same(is_compiled: bool) -> None:
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Sequential(Normed(), Normed()), nn.Flatten(), nn.Linear(3 * 64, 4))
    again = copy.deepcopy(plain)
    assert recompute_blocks(again) == 2
    if is_compiled:
        again.compile(backend="eager")
    batch, seen = LabelledBatch(*samples(6, size=8), None), []
    for net in (plain, again):
        torch.manual_seed(7)
        seen.append(gradients(net, [batch], nominal=6))
    for mine, other in zip(*seen, strict=True):
        assert torch.equal(mine, other)
    for name, buffer in plain.state_dict().items():
        assert torch.equal(again.state_dict()[name], buffer), name


def test_nothing_to_recompute() -> None:
    with pytest.raises(OptionError, match=r"Sequential has no Sequential or ModuleList of blocks of one class"):
        recompute_blocks(nn.Sequential(nn.Flatten(), nn.Linear(2, 2)))


@pytest.mark.parametrize(
    ("num_batches", "accumulate", "ends"), [(6, 1, [0, 1, 2, 3, 4, 5]), (6, 4, [3, 5]), (4, 4, [3]), (2, 8, [1])]
)
def test_an_epoch_ends_a_step(num_batches: int, accumulate: int, ends: list[int]) -> None:
    found = [number for number in range(num_batches) if ends_step(number, num_batches=num_batches, accumulate=accumulate)]
    assert found == ends


@pytest.mark.parametrize(("batch", "said"), [
    ([torch.zeros(2, 3)], r"holds \(Tensor\); training takes \(images, labels\): are the samples labelled"),
    (torch.zeros(2, 3), "holds .Tensor."), ({"image": torch.zeros(2)}, r"holds \(image\)"), ("text", "training takes"),
    ([torch.zeros(3, 2), torch.zeros(2)], "3 images and 2 labels"),
], ids=str)  # fmt: skip
def test_batches_that_are_not_labelled_images(batch: Any, said: str) -> None:
    with pytest.raises(OptionError, match=said):
        labelled_batch(batch, CPU, channels_last=True)


@pytest.mark.parametrize("make", [
    lambda images, labels, real: [images, labels, real],
    lambda images, labels, real: {"label": labels, "id": labels, "real": real, "image": images},
])  # fmt: skip
def test_batches_of_either_form(make: Callable[..., Any]) -> None:
    images, labels, real = torch.randn(2, 3, 4, 4), torch.tensor([1, 0]), torch.tensor([True, False])
    batch = labelled_batch(make(images, labels, real), CPU, channels_last=True)
    assert batch.images.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(batch.images, images)
    assert torch.equal(batch.labels, labels)
    assert int(batch.num_real) == 1
    whole = labelled_batch((images, labels), CPU, channels_last=False)
    assert (whole.real, whole.num_real) == (None, 2)


@pytest.mark.parametrize(("outputs", "labels", "said"), [
    (torch.zeros(2, 3), torch.tensor([0, 3]), "labels run from 0 to 3 and the model has 3 outputs"),
    (torch.zeros(2, 3), torch.tensor([-1, 0]), "labels run from -1 to 0"),
    (torch.zeros(2, 3), torch.zeros(2, 4), "3 outputs, labels are shares of 4"),
    (torch.zeros(2, 3, 5), torch.tensor([0, 1]), r"returns \(2, 3, 5\), not \(batch, classes\)"),
    ({"out": 1}, torch.tensor([0, 1]), "returns dict"),
])  # fmt: skip
def test_heads_that_do_not_fit_the_labels(outputs: Any, labels: torch.Tensor, said: str) -> None:
    with pytest.raises(OptionError, match=said):
        cross_entropy(outputs, labels)

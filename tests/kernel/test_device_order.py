"""The order of operations of an upload, held on a device that runs late, and shown to be seen when it is broken."""

from __future__ import annotations

import random
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from fake_device import Event, FakeDevice, Stream
from fixtures import quick
from hypothesis import given
from hypothesis import strategies as st
from uploads import Reads, doubled, expected_after, host_batch, wrong_reads

from datapipe.kernel import device
from datapipe.kernel.device import DeviceTransfer, Uploader
from datapipe.kernel.device_runtime import KeepAlive


def train(fake: FakeDevice, uploader: Uploader, seed: int, num_steps: int = 12) -> Reads:
    """What training does, in an order that the seed decides: upload ahead, take, compute, drop."""
    chance = random.Random(seed)
    ahead: list[tuple[dict[str, torch.Tensor], DeviceTransfer]] = []
    reads: Reads = []
    others_stream = fake.new_stream()
    for step in range(num_steps):
        batch = host_batch(step)
        given: dict[str, torch.Tensor] = {
            name: fake.pin(tensor) if chance.random() < 0.5 else tensor.clone() for name, tensor in batch.items()
        }
        with fake.under(chance.choice([fake.default_stream, others_stream])):
            if chance.random() < 0.3:
                given["label"] = fake.put(batch["label"])  # somebody made it on the device
            if chance.random() < 0.5:
                ahead.append((expected_after(batch), uploader.upload(given, then=doubled)))
            else:
                ahead.append((batch, uploader.upload(given)))
        del given
        while len(ahead) > chance.randrange(3):
            expected, arrival = ahead.pop(0)
            if chance.random() < 0.1:
                continue  # never taken
            found = arrival.hand_over()
            for name, tensor in expected.items():
                reads.append((tensor, fake.read(found[name])))
                if chance.random() < 0.3:
                    reads.append((tensor + 1, fake.read(found[name].add(1))))
            del found, arrival
    return reads


@pytest.mark.nightly
@quick
@given(st.integers(0, 2**32))
def test_bytes_are_right_whatever_runs_when(seed: int) -> None:
    fake = FakeDevice(seed)
    uploader = Uploader(fake)
    reads = train(fake, uploader, seed)
    assert wrong_reads(fake, reads) == 0
    assert fake.forbidden == []
    fake.pending.reap()
    assert len(fake.pending) == 0


# -- each rule, broken on purpose ---------------------------------------------------------------------


class _NoWait(FakeDevice):
    """Without the wait at the hand-over."""

    def wait_event(self, stream: Stream, event: Event) -> None:
        if stream is not self.default_stream:
            super().wait_event(stream, event)


class _NoWaitForTheMaker(FakeDevice):
    """Without waiting for the stream that made a tensor already on the device."""

    def wait_event(self, stream: Stream, event: Event) -> None:
        if stream is self.default_stream:
            super().wait_event(stream, event)


class _NoRecordStream(FakeDevice):
    def record_stream(self, tensor: torch.Tensor, stream: Stream) -> None:
        pass


class _EarlyEvent(FakeDevice):
    """With the upload's event recorded before its copies."""

    def copy_in(self, host: torch.Tensor) -> torch.Tensor:
        if not hasattr(self._thread, "early"):
            self._thread.early = super().record_event(self.current_stream())
        return super().copy_in(host)

    def record_event(self, stream: Stream) -> Event:
        early: Event | None = self._thread.__dict__.pop("early", None)
        return early if early is not None and stream is not self.default_stream else super().record_event(stream)


class _EverythingPinned(FakeDevice):
    """With pageable tensors copied from where they lie."""

    def is_pinned(self, tensor: torch.Tensor) -> bool:
        return True


def _early_release(patch: pytest.MonkeyPatch) -> None:
    """Pinned memory released as soon as its copy was requested."""
    patch.setattr(KeepAlive, "add", lambda pending, event, things: things.clear())


def _forget_device_tensors(patch: pytest.MonkeyPatch) -> None:
    join = device._Passage._join

    def forgetful(passage: Any, tensor: torch.Tensor) -> None:
        join(passage, tensor)
        passage.kept.pop()

    patch.setattr(device._Passage, "_join", forgetful)


def _then_elsewhere(patch: pytest.MonkeyPatch) -> None:
    """`then` on the stream of the thread that uploads."""
    upload = Uploader.upload

    def elsewhere(self: Uploader, nest: Any, then: Any = None) -> DeviceTransfer:
        def run(moved: Any) -> Any:
            with self._runtime.under(self._runtime.default_stream):  # type: ignore[attr-defined]
                return then(moved)

        return upload(self, nest, then=then and run)

    patch.setattr(Uploader, "upload", elsewhere)


def _ask_for_a_value(patch: pytest.MonkeyPatch) -> None:
    hand_over = DeviceTransfer.hand_over

    def asking(arrival: DeviceTransfer) -> Any:
        nest = hand_over(arrival)
        nest["label"].sum().item()
        return nest

    patch.setattr(DeviceTransfer, "hand_over", asking)


def _synchronize(patch: pytest.MonkeyPatch) -> None:
    hand_over = DeviceTransfer.hand_over

    def waiting(arrival: DeviceTransfer) -> Any:
        arrival._event.synchronize()
        return hand_over(arrival)

    patch.setattr(DeviceTransfer, "hand_over", waiting)


def _nothing(patch: pytest.MonkeyPatch) -> None:
    pass


BROKEN: dict[str, tuple[type[FakeDevice], Callable[[pytest.MonkeyPatch], None], str]] = {
    "nothing is": (FakeDevice, _nothing, ""),
    "no wait at the hand-over": (_NoWait, _nothing, "bytes"),
    "no wait for the maker of a device tensor": (_NoWaitForTheMaker, _nothing, "bytes"),
    "no record_stream": (_NoRecordStream, _nothing, "bytes"),
    "the event before the copies": (_EarlyEvent, _nothing, "bytes"),
    "pinned memory released early": (FakeDevice, _early_release, "bytes"),
    "device tensors not kept": (FakeDevice, _forget_device_tensors, "bytes"),
    "then on another stream": (FakeDevice, _then_elsewhere, "bytes"),
    "a value asked of the device": (FakeDevice, _ask_for_a_value, "_local_scalar_dense waits for the device"),
    "the host waits for an event": (FakeDevice, _synchronize, "event.synchronize"),
    "a copy from pageable memory": (_EverythingPinned, _nothing, "copy from pageable memory"),
}


@pytest.mark.nightly
@pytest.mark.parametrize("rule", BROKEN)
def test_a_broken_rule_is_seen(rule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    kind, patch, sign = BROKEN[rule]
    patch(monkeypatch)
    signs = set()
    for seed in range(8):
        fake = kind(seed)
        if wrong_reads(fake, train(fake, Uploader(fake), seed)):
            signs.add("bytes")
        signs.update(fake.forbidden)
    assert signs == ({sign} if sign else set())


# -- which stream waits for which ---------------------------------------------------------------------


def test_the_host_waits_for_nothing() -> None:
    """The device is halted; uploads and hand-overs continue."""
    fake = FakeDevice(is_lazy=True)
    uploader = Uploader(fake)
    reads: Reads = []
    for step in range(20):
        batch = host_batch(step)
        found = uploader.upload(batch).hand_over()
        reads += [(tensor, fake.read(found[name])) for name, tensor in batch.items()]
    assert len(fake.pending) == 20
    assert wrong_reads(fake, reads) == 0
    assert fake.forbidden == []
    fake.pending.reap()
    assert len(fake.pending) == 0


def test_copies_do_not_wait_for_a_busy_consumer() -> None:
    fake = FakeDevice(is_lazy=True)
    uploader = Uploader(fake)
    finish = fake.block(fake.default_stream)
    first = uploader.upload(host_batch(0), then=doubled).hand_over()
    read = fake.read(first["image"])
    second = uploader.upload(host_batch(1))
    fake.advance()
    fake.pending.reap()
    assert len(fake.pending) == 0, "both copies are done while the consumer's stream is not"
    with pytest.raises(IndexError):
        read()
    finish()
    assert wrong_reads(fake, [(expected_after(host_batch(0))["image"], read)]) == 0
    del second


def test_tensors_on_the_device_come_in_their_makers_order() -> None:
    fake = FakeDevice(is_lazy=True)
    uploader = Uploader(fake)
    finish = fake.block(fake.default_stream)
    made = fake.put(torch.arange(4))
    arrival = uploader.upload([made, torch.ones(2)], then=lambda nest: [nest[0] * 2, nest[1]])
    del made
    fake.advance()
    fake.pending.reap()
    assert len(fake.pending) == 1
    finish()
    read = fake.read(arrival.hand_over()[0])
    assert wrong_reads(fake, [(torch.arange(4) * 2, read)]) == 0


def test_a_side_streams_batch_is_finished_on_the_copy_stream() -> None:
    """As DALI gives them: made on a stream of its own, in memory that somebody must keep."""

    class Pipeline:
        pass

    fake = FakeDevice(is_lazy=True)
    uploader = Uploader(fake)
    pipeline, side = Pipeline(), fake.new_stream()
    alive = weakref.ref(pipeline)
    with fake.under(side):
        images = fake.put(torch.arange(6, dtype=torch.uint8))
        arrival = uploader.upload({"image": images}, then=lambda nest: {"image": nest["image"].to(torch.float32)}, keep=pipeline)
    del images, pipeline
    read = fake.read(arrival.hand_over()["image"])
    fake.pending.reap()
    assert alive() is not None
    assert wrong_reads(fake, [(torch.arange(6.0), read)]) == 0
    fake.pending.reap()
    assert alive() is None

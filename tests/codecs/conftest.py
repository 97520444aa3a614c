"""The decoders of images that are installed."""

from __future__ import annotations

import pytest

from datapipe.codecs.decode import DECODER_NAMES, Decoder, open_decoder
from datapipe.errors import DependencyError


@pytest.fixture(params=DECODER_NAMES)
def decoder(request: pytest.FixtureRequest) -> Decoder:
    try:
        return open_decoder(request.param)
    except DependencyError as exc:
        pytest.skip(str(exc))

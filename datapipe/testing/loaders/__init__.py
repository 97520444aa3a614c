"""The promises that every loader keeps, as tests: what any kind of data must pass, those of other packages too.

A kind joins by saying how its data is made and read:

    from datapipe.testing.loaders import LoaderOf, LoaderSuite

    class TestMyKind(LoaderSuite):
        @pytest.fixture
        def kind(self) -> LoaderOf:
            return LoaderOf(make=write_files, spoil=damage_one, open=MyLoader, ids=lambda batch: batch["id"].tolist())

The tests need pytest, and use real threads and processes. Those that take longer carry the mark `nightly`, and those that stand
for a promise of docs/loader.md the mark `promise`; both are to be registered with pytest.
`pytest.register_assert_rewrite("datapipe.testing.loaders")` in a conftest.py lets a failure show the values compared.
"""

from datapipe.testing.loaders.bad_samples import BadSampleSuite
from datapipe.testing.loaders.interrupts import InterruptSuite
from datapipe.testing.loaders.kind import NUM_SAMPLES, LoaderOf
from datapipe.testing.loaders.options import OptionSuite
from datapipe.testing.loaders.passes import PassSuite
from datapipe.testing.loaders.processes import ProcessSuite
from datapipe.testing.loaders.sameness import SamenessSuite
from datapipe.testing.loaders.seeds import SeedSuite
from datapipe.testing.loaders.states import StateSuite

__all__ = [
    "NUM_SAMPLES",
    "BadSampleSuite",
    "InterruptSuite",
    "LoaderOf",
    "LoaderSuite",
    "OptionSuite",
    "PassSuite",
    "ProcessSuite",
    "SamenessSuite",
    "SeedSuite",
    "StateSuite",
]


class LoaderSuite(PassSuite, SamenessSuite, SeedSuite, StateSuite, BadSampleSuite, OptionSuite, InterruptSuite, ProcessSuite):
    """All promises of a loader."""

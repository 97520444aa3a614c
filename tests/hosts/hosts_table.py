"""What each framework does with our loader: the table of docs/hosts.md, and the test that shows each entry.

python tests/hosts/hosts_table.py writes it into the documents.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

_ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = (_ROOT / "docs" / "hosts.md",)


@dataclass(frozen=True)
class Cell:
    """An entry, and the test (file without `test_`, function without `test_`) that fails if it is wrong.

    The file lies beside this one, or in the folder above.
    """

    text: str
    file: str
    function: str

    @property
    def test(self) -> tuple[str, str]:
        return f"test_{self.file}.py", f"test_{self.function}"


HOSTS = ("Lightning", "Accelerate", "Trainer", "DDP, FSDP", "ImageNet script", "timm")
_ONCE = "every_sample_once_per_epoch_on_two_ranks"
_PARALLEL = Cell("yes", "parallel", "both_stop_in_mid_epoch_and_go_on")
_NONE = None  # the framework has no such thing, or leaves it to the script

TABLE: dict[str, tuple[Cell | None, ...]] = {
    "change needed": (
        Cell("nothing", "lightning", "fit_and_validation_give_the_loaders_own_batches"),
        Cell("`prepare`", "accelerate", "what_is_gathered_is_each_sample_once"),
        Cell("`LoaderMixin`", "trainer", "training_takes_the_loaders_own_batches"),
        Cell("nothing", "parallel", "both_stop_in_mid_epoch_and_go_on"),
        Cell("4 lines", "scripts", "few_lines_change"),
        Cell("1 line a loader", "scripts", "timms_loops"),
    ),
    "each sample once an epoch, over all ranks": (
        Cell("yes", "lightning", _ONCE),
        Cell("yes", "accelerate", "what_is_gathered_is_each_sample_once"),
        Cell("yes", "trainer", "with_accumulation_and_on_other_ranks"),
        _PARALLEL,
        Cell("yes", "scripts", "the_imagenet_script_on_two_ranks"),
        _NONE,
    ),
    "the steps and samples of torch's loader": (
        _NONE,
        _NONE,
        Cell("metrics equal", "trainer", "evaluation_equals_that_of_torchs_loader"),
        _NONE,
        Cell("yes", "scripts", "the_imagenet_script_alone"),
        Cell("yes", "scripts", "timms_loops"),
    ),
    "resumes exactly in mid-epoch": (
        Cell("yes", "lightning", "a_stopped_run_goes_on_exactly"),
        Cell("yes", "accelerate", "a_saved_state_goes_on_exactly_on_as_many_ranks_as_one_likes"),
        Cell("yes", "trainer", "a_killed_run_goes_on_exactly"),
        _PARALLEL,
        _NONE,
        _NONE,
    ),
    "resumes on another number of ranks": (
        Cell("yes", "lightning", "a_run_of_two_ranks_goes_on_with_one"),
        Cell("yes", "accelerate", "a_saved_state_goes_on_exactly_on_as_many_ranks_as_one_likes"),
        Cell("yes", "trainer", "with_accumulation_and_on_other_ranks"),
        Cell("yes, DDP", "examples", "training_stops_and_goes_on"),
        _NONE,
        _NONE,
    ),
    "an accumulation ends with the epoch": (
        _NONE,
        Cell("yes", "accelerate", "the_last_step_of_an_epoch_ends_an_accumulation"),
        Cell("yes", "trainer", "with_accumulation_and_on_other_ranks"),
        _NONE,
        _NONE,
        _NONE,
    ),
    "metrics over all ranks count each sample once": (
        _NONE,
        Cell("yes", "accelerate", "what_is_gathered_is_each_sample_once"),
        Cell("yes", "trainer", "evaluation_on_two_ranks_counts_each_sample_once"),
        _NONE,
        _NONE,
        _NONE,
    ),
    "code that would rebuild it as a torch loader": (
        Cell("an error", "lightning", "overfitting_with_shuffling_is_refused"),
        Cell("an error", "accelerate", "what_would_be_lost_is_refused"),
        Cell("an error", "trainer", "without_the_mixin_resuming_is_an_error"),
        _NONE,
        _NONE,
        _NONE,
    ),
}


def table() -> str:
    """The table, in Markdown."""
    lines = ["| | " + " | ".join(HOSTS) + " |", "|---" * (1 + len(HOSTS)) + "|"]
    for feature, cells in TABLE.items():
        lines.append(f"| {feature} | " + " | ".join(cell.text if cell else "" for cell in cells) + " |")
    return "\n".join(lines)


def with_table(text: str) -> str:
    """The document with the table in its place."""
    from benchmarks.marked import replace_marked

    return replace_marked(text, "hosts", table(), where="the document")


if __name__ == "__main__":
    sys.path.insert(0, str(_ROOT))  # a script finds what lies beside itself
    for document in DOCUMENTS:
        document.write_text(with_table(document.read_text()))

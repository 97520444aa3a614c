"""Random programs as `__getitem__`: whatever is gathered of their arrays is what they return."""

from __future__ import annotations

import linecache
import random
import types
from typing import Any

import numpy as np
import pytest
from torch.utils.data import default_collate

from datapipe.adapt import array_rows
from datapipe.adapt.array_rows import array_rows_of, is_same

NUM = 40
VALUES = np.random.default_rng(0)
HELD = {
    "tokens": VALUES.integers(0, 60_000, 500).astype(np.uint16),
    "floats": VALUES.normal(size=500) * 1e5,
    "bytes": VALUES.integers(-9, 9, (NUM, 6)).astype(np.int8),
    "cubes": VALUES.normal(size=(NUM, 5, 3)).astype(np.float32),
    "flags": VALUES.random(500) > 0.5,
    "backwards": np.arange(500)[::-1],
    "length": 7,
    "config": types.SimpleNamespace(num=5),
    "sizes": {"a": 2},
    "missing": None,
}
NUMBERS = ("i", "i", "i", "2", "1", "self.length", "self.config.num", "self.sizes['a']")
ENDINGS = (
    ".astype(np.int64)", ".astype('float32')", ".astype(np.uint8)", ".long()", ".float()", ".half()", ".bool()", ".clone()",
    ".copy()",
    ".item()", ".contiguous()", ".sum()", ".numpy()", ".T", "[:-1]", "[1:]", "[::2]", "[::-1]", "[0]", "[-1]", "[None]",
)  # fmt: skip
CALLS = (
    "torch.from_numpy({})", "torch.tensor({})", "torch.as_tensor({})", "torch.tensor({}, dtype=torch.long)", "np.array({})",
    "np.asarray({}, np.int32)", "int({})", "float({})", "torch.stack([{}])", "({} + 1)", "({} if self.missing is None else i)",
)  # fmt: skip
RESULTS = ("x", "(x, i)", "[x, x]", "{{'a': x}}", "dict(a=x, b={})", "(x, {})")


def number(chance: random.Random, depth: int = 0) -> str:
    if depth == 2 or chance.random() < 0.6:
        return chance.choice(NUMBERS)
    return f"({number(chance, depth + 1)} {chance.choice('+-*')} {number(chance, depth + 1)})"


def expression(chance: random.Random) -> str:
    array, start = chance.choice(("tokens", "floats", "bytes", "cubes", "flags", "backwards")), number(chance)
    made = f"self.{array}[{chance.choice((start, f'{start}:{start} + self.length', f'{start}:{number(chance)}', 'i, 1:'))}]"
    for _ in range(chance.randrange(4)):
        made = chance.choice(CALLS).format(made) if chance.random() < 0.5 else f"{made}{chance.choice(ENDINGS)}"
    return made


def program(chance: random.Random) -> str:
    result = chance.choice(RESULTS).format(expression(chance))
    return (
        "import numpy as np\nimport torch\nclass Program:\n def __len__(self):\n  return 40\n def __getitem__(self, i):\n"
        f"  x = {expression(chance)}\n  return {result}\n"
    )


def dataset_of(source: str, name: str) -> Any:
    linecache.cache[name] = len(source), None, source.splitlines(keepends=True), name
    names: dict[str, Any] = {}
    exec(compile(source, name, "exec", dont_inherit=True), names)
    made = names["Program"]()
    vars(made).update(HELD)
    return made


@pytest.mark.daily(2)
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("seed", range(4))
def test_what_is_gathered_is_what_the_program_returns(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(array_rows.Trial, "pays", True)
    chance, num_taken = random.Random(seed), 0
    for place in range(300):
        source = program(chance)
        name = f"<program {seed} {place}>"
        rows = array_rows_of(dataset_of(source, name), default_collate, batch_size=8, num_workers=0)
        batches = [[key] for key in range(-3, NUM + 5)] + [[0, 5, 3], [NUM - 1, 1]]
        for keys in batches if rows is not None else ():
            batch = rows.gathered(keys)
            assert batch is None or is_same(batch, rows.plain(keys)), source
        num_taken += rows is not None
        del linecache.cache[name]
    assert num_taken > 20

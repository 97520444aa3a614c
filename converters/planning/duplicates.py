"""Find samples whose image, or whose fields where there is no image, are byte for byte those of an earlier sample.

Only what has the size of something else is read and hashed (SHA-256). Sizes and hashes are sorted on disk, so memory does not
grow with the number of samples.
"""

from __future__ import annotations

import hashlib
import itertools
import os
import sqlite3
from collections.abc import Iterator
from pathlib import Path

from converters.planning import places
from converters.planning.plan import Duplicates
from converters.samples.examine import main_image
from converters.samples.reading import PlannedSample, Roots, read_each
from datapipe.core.database import attached
from datapipe.index.listed import SourceFacts, join

_NUM_NAMED = 3


def find_duplicates(
    connection: sqlite3.Connection, facts: SourceFacts, order: tuple[str, ...], *, roots: Roots, scratch: Path
) -> Duplicates:
    """Write the table `duplicates(ordinal, original)`: places in the listing, the original being the first of its content.

    `order`: fields by bit. Samples that cannot be read are none. Raises IntegrityError if the source changed since it was listed.
    """
    connection.execute("CREATE TABLE duplicates (ordinal INTEGER PRIMARY KEY, original INTEGER)")
    image = main_image(facts.fields)
    with attached(connection, scratch, "content"):
        connection.execute("CREATE TABLE content.sizes (ordinal INTEGER PRIMARY KEY, nbytes INTEGER)")
        connection.execute("CREATE TABLE content.hashes (ordinal INTEGER PRIMARY KEY, digest BLOB)")
        samples = _samples(connection, order, image, of="listing")
        connection.executemany("INSERT INTO content.sizes VALUES (?, ?)", ((one.id, _nbytes(one)) for one in samples))
        connection.execute("CREATE INDEX content.by_size ON sizes (nbytes)")
        alike = (
            "(SELECT listing.* FROM listing JOIN content.sizes AS one USING (ordinal) WHERE EXISTS (SELECT 1 FROM content.sizes"
            " AS other WHERE other.nbytes = one.nbytes AND other.ordinal != one.ordinal) ORDER BY ordinal) AS listing"
        )
        read = read_each(roots, _samples(connection, order, image, of=alike))
        rows = ((sample.id, _digest(sample, contents)) for sample, contents, problem in read if problem is None)
        connection.executemany("INSERT INTO content.hashes VALUES (?, ?)", rows)
        connection.execute("CREATE INDEX content.by_digest ON hashes (digest)")
        connection.execute(
            "INSERT INTO main.duplicates SELECT ordinal, original FROM content.hashes JOIN"
            " (SELECT digest, min(ordinal) AS original FROM content.hashes GROUP BY digest HAVING count(*) > 1) USING (digest)"
            " WHERE ordinal != original ORDER BY ordinal"
        )
    counts = connection.execute(
        "SELECT count(*), coalesce(sum(one.label != kept.label), 0) FROM duplicates"
        " JOIN listing AS one USING (ordinal) JOIN listing AS kept ON kept.ordinal = duplicates.original"
    )
    num, num_relabelled = counts.fetchone()
    first = tuple((name, original) for name, original, _ in itertools.islice(named_duplicates(connection), _NUM_NAMED))
    return Duplicates(num, num_relabelled, first)


def named_duplicates(connection: sqlite3.Connection) -> Iterator[tuple[str, str, bool]]:
    """Yield (name, name of the one that is kept, whether they have one label) of each duplicate, in the order of the listing."""
    rows = connection.execute(
        "SELECT first.path, one.name, second.path, kept.name, one.label = kept.label FROM duplicates"
        " JOIN listing AS one USING (ordinal) JOIN directories AS first ON first.directory = one.directory"
        " JOIN listing AS kept ON kept.ordinal = duplicates.original"
        " JOIN directories AS second ON second.directory = kept.directory"
        " ORDER BY duplicates.ordinal"
    )
    for path, name, kept_path, kept_name, is_one_label in rows:
        yield os.fsdecode(join(path, name)), os.fsdecode(join(kept_path, kept_name)), bool(is_one_label)


def _samples(connection: sqlite3.Connection, order: tuple[str, ...], image: str | None, *, of: str) -> Iterator[PlannedSample]:
    """Yield the samples that can be read, with what is compared of them; their ids are places in the listing."""
    rows = connection.execute(
        f"SELECT ordinal, path, name, listing.nbytes, fields, {', '.join(places.COLUMNS)} FROM {of}"
        " CROSS JOIN directories USING (directory) WHERE problem IS NULL ORDER BY ordinal"
    )
    for ordinal, path, name, nbytes, fields, *columns in rows:
        source = join(path, name)
        made_of = places.contents_of(source, nbytes, tuple(columns), fields, order)
        origins, values, in_files = made_of.origins, made_of.values, made_of.nbytes
        if image is not None:
            origins, values = {key: one for key, one in origins.items() if key == image}, {}
            in_files = sum(one.value_nbytes for one in origins.values())
        if origins or values:
            yield PlannedSample(0, ordinal, 0, source, None, origins, values, in_files)


def _nbytes(sample: PlannedSample) -> int:
    texts = sum(len(text.encode(errors="surrogateescape")) for text in sample.values.values())
    return texts + sample.nbytes


def _digest(sample: PlannedSample, contents: dict[str, bytes]) -> bytes:
    values = {name: text.encode(errors="surrogateescape") for name, text in sample.values.items()}
    digest = hashlib.sha256()
    for name, data in sorted({**contents, **values}.items()):
        digest.update(b"%d %s %d " % (len(name), name.encode(), len(data)))
        digest.update(data)
    return digest.digest()

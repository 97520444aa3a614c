"""Parquet files whose rows are samples, datapipe's own and those of other tools.

The layout of its own: Hugging Face's convention for images, and settings that keep bytes addressable.

    image  struct<bytes: binary, path: string>   the encoded image, and a file name for it
    label  int64
    key    string                                 the sample's name

Further fields have their own names: masks like `image`, texts and JSON as string, others as binary. The schema's metadata
`huggingface` says what the columns mean to the `datasets` package, including the names of classes.
"""

from __future__ import annotations

BYTES = "bytes"
PATH = "path"
LABEL = "label"
KEY = "key"

# A page is closed once it has this many bytes, checked after every row: so an image of that size has a page of its own,
# which readers that use page indexes can fetch alone, while a thousand labels share one.
PAGE_NBYTES = 8192
# Size of the fields at which a row group is written. Writers and readers hold a row group in memory; as every value can be
# located by itself, larger ones have no benefit.
ROW_GROUP_NBYTES = 16_000_000
MAX_ROW_GROUP_ROWS = 1 << 20
MAX_FIELD_NBYTES = (1 << 31) - (1 << 16)  # sizes of pages are 31-bit numbers, and a page has more than a value

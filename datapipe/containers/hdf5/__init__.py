"""HDF5 files, datapipe's own and those of other tools.

The layout of its own: names of datasets, and settings that make them byte-addressable.

    image/data     uint8 (nbytes,)   the images one after the other, in one piece of the file
    image/offsets  int64 (n + 1,)    image i is data[offsets[i]:offsets[i + 1]]
    image/pixels   uint8 (n, h, w, 3), if all are raw pixels of one size: a virtual dataset, a view of `data`
    label          int64 (n,)
    key            bytes (n,)
    size           int32 (n, 2)      height and width

Further fields are stored like `image`, under their own names.
"""

from __future__ import annotations

DATA = "data"
OFFSETS = "offsets"
PIXELS = "pixels"
LABEL = "label"
KEY = "key"
SIZE = "size"

VERSIONS = ("v110", "v110")  # of the file format: HDF5 1.10 (2016), the first with virtual datasets
# The first field's data begins here, a page from the start, so they can be written before HDF5 knows how many there are.
DATA_START = 4096  # bytes
LEAST_DATA = 4096  # bytes: HDF5 aligns data of at least this size; the data of smaller shards is followed by zeros

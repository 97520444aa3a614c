"""Read shards of MosaicML's `streaming` (MDS), which datapipe does not write."""

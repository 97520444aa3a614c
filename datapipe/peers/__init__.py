"""Read shards in the forms of other libraries, which datapipe does not write: of datasets, MosaicML, Lightning, FFCV."""

"""Read and write TFRecord files of tf.train.Example: datapipe's own and those of other tools."""

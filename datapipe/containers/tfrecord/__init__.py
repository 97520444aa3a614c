"""TFRecord files of tf.train.Example: datapipe's own and others'."""

"""Choose which columns of a table make up which matrix of a batch, and transform their values."""

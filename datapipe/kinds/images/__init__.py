"""Batches of samples, mostly images: from picks to decoded, augmented and collated tensors."""

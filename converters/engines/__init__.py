"""The engines that build the shards of a plan: processes of this machine, or tasks of a Ray cluster.

Both run the same code over the same plan, one shard at a time, and publish it by the same steps, so the bytes do not show which
of them was used.
"""

"""Video: packets to frames. A decoder reads no container; an index says where the packets lie."""

"""Video files: their packets and frames, from the boxes of mp4, or by PyAV."""

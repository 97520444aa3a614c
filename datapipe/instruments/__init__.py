"""Instruments of a training: what times its steps and the stages of torch's loader, and tries remedies where its code is."""

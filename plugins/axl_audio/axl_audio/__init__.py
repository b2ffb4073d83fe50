"""Sound for axcore: speech encoders, log-mel features, decoding and augmentation."""

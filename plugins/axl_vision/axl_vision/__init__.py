"""Pictures for axcore: encoders, models of pictures and text, decoding and augmentation."""

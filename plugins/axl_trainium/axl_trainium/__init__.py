"""AWS Trainium for axcore: hardware and mesh rules."""

"""What a compiled program costs: FLOPs, bytes, time and memory."""
